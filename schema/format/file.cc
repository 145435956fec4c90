#include "schema/format/file.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>

#include "schema/base/disk.h"
#include "schema/base/text_source.h"
#include "schema/format/flat.h"

namespace pp {
namespace {

// What follows the FlatBuffer.
struct Seal {
  uint64_t length;
  uint64_t checksum;
};

Seal SealOf(std::string_view flatbuffer) {
  return {flatbuffer.size(), XXH3_64bits(flatbuffer.data(), flatbuffer.size())};
}

std::string_view ViewOf(const flatbuffers::DetachedBuffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), buffer.size()};
}

Result<Program> In(const std::string& name, Result<Program> program) {
  return program.ok() ? std::move(program) : program.status().In(name);
}

// The FlatBuffer in a file's bytes; *sum, if given, gets its checksum.
Result<std::string_view> Unseal(std::string_view bytes, uint64_t* sum) {
  if (bytes.empty()) return Status::Invalid(fmt::format("empty ({})", kRightPlan));
  if (bytes.starts_with("program "))
    return Status::Invalid("not a plan but lists in text form (what pipec import makes of them)");
  if (bytes.size() < 8 || !plan::PlanBufferHasIdentifier(bytes.data())) {
    return Status::Invalid(fmt::format("not a plan ({})", kRightPlan));
  }
  Seal seal{};
  std::string_view flatbuffer;
  if (bytes.size() > sizeof(seal)) {
    flatbuffer = bytes.substr(0, bytes.size() - sizeof(seal));
    std::memcpy(&seal, flatbuffer.end(), sizeof(seal));
  }
  if (flatbuffer.empty() || seal.length != flatbuffer.size()) {
    return Status::Invalid(fmt::format(
        "truncated or damaged: {} bytes without their length at the end (compile it again)",
        bytes.size()));
  }
  const uint64_t checksum = SealOf(flatbuffer).checksum;
  if (seal.checksum != checksum) {
    return Status::Invalid(
        fmt::format("damaged: its bytes have the checksum {:016x} (its end says {:016x})", checksum,
                    seal.checksum));
  }
  if (sum != nullptr) *sum = checksum;
  return flatbuffer;
}

Result<Program> DecodeSealed(std::string_view bytes, const std::string& name,
                             const Selection& selection, uint64_t* checksum = nullptr) {
  const Result<std::string_view> flatbuffer = Unseal(bytes, checksum);
  if (!flatbuffer.ok()) return flatbuffer.status().In(name);
  return In(name, FromFlat(*flatbuffer, selection));
}

// Read once: what is checked is what is decoded, whatever happens to the file meanwhile.
Result<Program> LoadFile(const std::string& path, const Selection& selection,
                         uint64_t* checksum = nullptr) {
  const Result<std::string> bytes = ReadText(path, kRightPlan, kMostPlanBytes + sizeof(Seal));
  if (!bytes.ok()) return bytes.status();
  return DecodeSealed(*bytes, path, selection, checksum);
}

}  // namespace

Status Save(const Program& program, const std::string& path) {
  const Result<flatbuffers::DetachedBuffer> buffer = ToFlat(program, kMostPlanBytes);
  if (!buffer.ok()) return buffer.status().In(path);
  const std::string_view flatbuffer = ViewOf(*buffer);
  const Seal seal = SealOf(flatbuffer);
  const std::string_view parts[] = {flatbuffer,
                                    {reinterpret_cast<const char*>(&seal), sizeof(seal)}};
  return WriteWhole(path, parts);
}

Result<Program> Load(const std::string& path, uint64_t* checksum) {
  return LoadFile(path, {}, checksum);
}

Result<Program> LoadDevice(const std::string& path, int device) {
  return LoadFile(path, {Selection::Whose::kDevice, device});
}

Result<Program> LoadRank(const std::string& path, int rank, uint64_t* checksum) {
  return LoadFile(path, {Selection::Whose::kRank, rank}, checksum);
}

Result<std::string> Encode(const Program& program, int64_t most_bytes) {
  const Result<flatbuffers::DetachedBuffer> buffer = ToFlat(program, most_bytes);
  if (!buffer.ok()) return buffer.status();
  std::string bytes(ViewOf(*buffer));
  const Seal seal = SealOf(bytes);
  return bytes.append(reinterpret_cast<const char*>(&seal), sizeof(seal));
}

Result<Program> Decode(std::string_view bytes, const std::string& name) {
  return DecodeSealed(bytes, name, {});
}

Result<Program> DecodeUnsealed(std::string_view flatbuffer, const std::string& name) {
  return In(name, FromFlat(flatbuffer, {}));
}

}  // namespace pp
