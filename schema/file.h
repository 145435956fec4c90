// Plan files, and the only code that sees FlatBuffers. A file is a plain FlatBuffer
// (schema/program.fbs) followed by 16 bytes: its length and its checksum (XXH3).
#pragma once

#include <string>

#include "schema/program.h"
#include "schema/status.h"

namespace pp {

// Writes `path` completely or not at all. Invalid: a path that cannot be written, a
// plan beyond FlatBuffers' 2 GiB. Failed: the disk is full.
Status Save(const Program& program, const std::string& path);

// Reads a plan back: length and checksum, then FlatBuffers' verifier, then the meaning
// of every field (known ops, stages, micro-batches and devices within range). Whether
// the program is *right* is verify's question.
Result<Program> Load(const std::string& path);

// The same, but the lists of all other devices stay empty.
Result<Program> LoadDevice(const std::string& path, int device);

}  // namespace pp
