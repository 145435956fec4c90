#include "runtime/files/shard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/files/checked_part.h"
#include "runtime/files/folder.h"
#include "schema/base/json.h"

namespace pp {
namespace {

using Json = nlohmann::json;

constexpr int kShardFormat = 1;

}  // namespace

Result<ShardWriter> ShardWriter::Create(const std::string& path, FileWatch* watch) {
  const FileOperation operation(watch, "open", path);
  const int descriptor =
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor < 0) return CannotWrite(path);
  return ShardWriter(path, descriptor, watch);
}

ShardWriter::ShardWriter(ShardWriter&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      watch_(other.watch_),
      offset_(other.offset_),
      records_(std::move(other.records_)) {}

ShardWriter::~ShardWriter() {
  if (descriptor_ >= 0) close(descriptor_);
}

Status ShardWriter::Write(const void* data, int64_t bytes) {
  const FileOperation operation(watch_, "write", path_);
  const std::string_view all{static_cast<const char*>(data), static_cast<size_t>(bytes)};
  if (const int error = WriteAll(descriptor_, all)) return CannotWrite(path_, error);
  offset_ += bytes;
  return {};
}

Status ShardWriter::Add(StateRecord record, const float* numbers) {
  record.offset = offset_;
  record.sum = SumOf(numbers, record.count * 4);
  records_.push_back(record);
  return Write(numbers, record.count * 4);
}

Status ShardWriter::Finish() {
  Json records = Json::array();
  for (const StateRecord& r : records_)
    records.push_back({static_cast<int>(r.kind), r.tensor, r.peer.index, r.peer.of, r.begin,
                       r.count, r.offset, r.sum});
  const std::string footer = Json{{"format", kShardFormat}, {"records", records}}.dump();
  const uint64_t ends[] = {footer.size(),
                           SumOf(footer.data(), static_cast<int64_t>(footer.size()))};
  PP_RETURN_IF_ERROR(Write(footer.data(), static_cast<int64_t>(footer.size())));
  PP_RETURN_IF_ERROR(Write(ends, sizeof ends));
  const FileOperation operation(watch_, "fsync", path_);
  if (const int error = Sync(descriptor_)) return CannotWrite(path_, error);
  if (close(std::exchange(descriptor_, -1)) != 0) return CannotWrite(path_);
  return {};
}

Result<ShardReader> ShardReader::Open(const std::string& path) {
  Result<InputFile> file = OpenPart(path, "a rank's part of a checkpoint");
  PP_RETURN_IF_ERROR(file.status());
  ShardReader reader(path, std::move(*file));
  PP_RETURN_IF_ERROR(reader.ReadFooter());
  return reader;
}

Status ShardReader::ReadFooter() {
  const auto damaged = [&] {
    return Status::Invalid(path_ + ": damaged (a rank's part of a checkpoint)");
  };
  uint64_t ends[2];
  const int64_t before = file_.bytes() - static_cast<int64_t>(sizeof ends);
  if (before < 0) return damaged();
  PP_RETURN_IF_ERROR(file_.Read(before, ends, sizeof ends));
  if (ends[0] > static_cast<uint64_t>(std::min(before, kMostText))) return damaged();
  const auto length = static_cast<int64_t>(ends[0]), data = before - length;
  std::string footer(length, 0);
  PP_RETURN_IF_ERROR(file_.Read(data, footer.data(), length));
  if (SumOf(footer.data(), length) != ends[1]) return damaged();
  footer_sum_ = ends[1];
  const Result<Json> parsed = ParseJson(footer);
  if (!parsed.ok()) return damaged();
  const Json& root = *parsed;
  int64_t end = 0;
  const bool reads = Reads([&] {
    if (root.at("format") != kShardFormat) return;
    for (const Json& r : root.at("records")) {
      StateRecord record{.kind = static_cast<StateKind>(r.at(0).get<int>()),
                         .tensor = r.at(1),
                         .peer = {r.at(2), r.at(3)},
                         .begin = r.at(4),
                         .count = r.at(5),
                         .offset = r.at(6),
                         .sum = r.at(7)};
      if (record.offset != end || record.count < 0 || record.count > (data - end) / 4) return;
      end += record.count * 4;
      records_.push_back(record);
    }
  });
  return reads && end == data ? Status() : damaged();
}

Status ShardReader::Read(const StateRecord& record, float* out) const {
  PP_RETURN_IF_ERROR(file_.Read(record.offset, out, record.count * 4));
  if (SumOf(out, record.count * 4) == record.sum) return {};
  return Status::Invalid(fmt::format("{}: damaged: its bytes from {} on have a different checksum",
                                     path_, record.offset));
}

}  // namespace pp
