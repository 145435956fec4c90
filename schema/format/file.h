// Plan files. A file is a plain FlatBuffer
// (schema/program.fbs) followed by 16 bytes: its length and its checksum (XXH3).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

// Writes `path` completely or not at all. Invalid: a path that cannot be written, a
// plan beyond FlatBuffers' 2 GiB. Failed: the disk is full.
Status Save(const Program& program, const std::string& path);

// Reads a plan back: length and checksum, then FlatBuffers' verifier, then the meaning
// of every field (known ops, stages, micro-batches and devices within range). Whether
// the program is *right* is verify's question. *checksum, if given, gets that of all bytes that
// were read, also where only one list is decoded.
Result<Program> Load(const std::string& path, uint64_t* checksum = nullptr);

// The same, but the lists of all other devices stay empty.
Result<Program> LoadDevice(const std::string& path, int device);
// The same for the device that `rank` of a run has (topology.h).
Result<Program> LoadRank(const std::string& path, int rank, uint64_t* checksum = nullptr);

// The same without a file, for tests and fuzzing. `name` replaces the path in errors.

// Less than 2 GiB: FlatBuffers' offsets have 32 bits, one of them for the sign.
inline constexpr int64_t kMostPlanBytes = (int64_t{1} << 31) - 32;

// The bytes of the file. Invalid: more than `most_bytes`.
Result<std::string> Encode(const Program& program, int64_t most_bytes = kMostPlanBytes);
Result<Program> Decode(std::string_view bytes, const std::string& name);
// Takes Encode's bytes without the last 16, and so bypasses length and checksum.
Result<Program> DecodeUnsealed(std::string_view flatbuffer, const std::string& name);

}  // namespace pp
