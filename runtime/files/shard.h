// One rank's part of a checkpoint (checkpoint.h) as a file: elements (fp32) of all records |
// footer, JSON, which names them | its length, u64 | its XXH3, u64. Every record has its own
// checksum.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/files/file_watch.h"
#include "schema/base/disk.h"
#include "schema/base/status.h"
#include "schema/model/layout.h"

namespace pp {

enum class StateKind : uint8_t { kWeights, kM, kV };

// Elements [begin, begin + count) of a tensor-parallel peer's part of a parameter (Tensor::id).
struct StateRecord {
  StateKind kind = StateKind::kWeights;
  int tensor = 0;
  Peer peer;
  int64_t begin = 0, count = 0;
  // The shard's.
  int64_t offset = 0;
  uint64_t sum = 0;
};

class ShardWriter {
 public:
  // Failed: cannot be written. `watch` may be null; it outlives the writer.
  static Result<ShardWriter> Create(const std::string& path, FileWatch* watch = nullptr);
  ShardWriter(ShardWriter&& other) noexcept;
  ShardWriter& operator=(ShardWriter&&) = delete;
  ~ShardWriter();

  // Failed, here and below: the disk is full or broken.
  Status Add(StateRecord record, const float* numbers);
  // Writes the footer, and makes sure that everything has reached the disk.
  Status Finish();

 private:
  ShardWriter(std::string path, int descriptor, FileWatch* watch)
      : path_(std::move(path)), descriptor_(descriptor), watch_(watch) {}
  Status Write(const void* data, int64_t bytes);

  std::string path_;
  int descriptor_;
  FileWatch* watch_;
  int64_t offset_ = 0;
  std::vector<StateRecord> records_;
};

class ShardReader {
 public:
  // Invalid: it is missing, damaged or truncated. Failed: it cannot be read.
  static Result<ShardReader> Open(const std::string& path);

  const std::vector<StateRecord>& records() const { return records_; }
  uint64_t footer_sum() const { return footer_sum_; }
  int64_t bytes() const { return file_.bytes(); }
  // All elements of a record. Invalid: its checksum does not match. Any number of threads can read.
  Status Read(const StateRecord& record, float* out) const;

 private:
  ShardReader(std::string path, InputFile file) : path_(std::move(path)), file_(std::move(file)) {}
  Status ReadFooter();

  std::string path_;
  InputFile file_;
  std::vector<StateRecord> records_;
  uint64_t footer_sum_ = 0;
};

}  // namespace pp
