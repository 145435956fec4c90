// A file of training data, cut into sequences.
//
// Three formats, told apart by content:
//   llm.c token file   256 int32 (20240520, version 1, number of tokens, zeros), then uint16 tokens
//   Megatron dataset   PREFIX.bin (tokens back to back) and PREFIX.idx (header "MMIDIDX"); the
//                      path may name either of them, or PREFIX
//   plain text         every byte is a token
// The file is mapped, not read: opening costs one scan, and several ranks share its pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "schema/status.h"

namespace pp {

class Dataset {
 public:
  struct Options {
    int vocab_size = 0;       // a token t is legal when 0 <= t < vocab_size
    int sequence_length = 0;  // T below, at least 1
  };

  // Errors (Invalid): the file is missing, empty, a directory, truncated, damaged, holds fewer
  // than T + 1 tokens, or holds an illegal token in its first 2^29.
  static Result<Dataset> Open(const std::string& path, const Options& options);

  // How many tokens the file holds, and how many whole sequences: (tokens - 1) div T, since
  // sequence n is the T + 1 tokens [nT, nT + T] and shares its last one with its successor.
  int64_t tokens() const { return tokens_; }
  int64_t sequences() const { return (tokens_ - 1) / options_.sequence_length; }

  // The inputs of sequence n, tokens [nT, nT + T), and its targets, the same shifted by one,
  // into T places. Past the last sequence the file starts again: n counts modulo sequences().
  // Errors (Invalid): an illegal token. Nothing is allocated unless there is an error.
  // REQUIRES: n >= 0.
  Status Inputs(int64_t n, int32_t* inputs) const { return Copy(First(n), inputs); }
  Status Targets(int64_t n, int32_t* targets) const { return Copy(First(n) + 1, targets); }

 private:
  // Numbered as in a Megatron index.
  enum class Type { kUint8 = 1, kInt8 = 2, kInt16 = 3, kInt32 = 4, kInt64 = 5, kUint16 = 8 };
  // What a file says about itself.
  struct Layout {
    std::string path;
    std::shared_ptr<const std::byte> file;  // the mapping
    size_t offset = 0;                      // of the first token, in bytes
    int64_t tokens = 0;
    Type type = Type::kUint8;
  };
  static Result<Layout> Find(const std::string& path);
  static Result<Layout> FindMegatron(const std::string& prefix);

  Dataset(Layout layout, const Options& options)
      : path_(std::move(layout.path)),
        file_(std::move(layout.file)),
        data_(file_.get() + layout.offset),
        tokens_(layout.tokens),
        type_(layout.type),
        options_(options) {}

  int64_t First(int64_t n) const { return n % sequences() * options_.sequence_length; }
  Status Check(int64_t first, int64_t count) const;
  Status Copy(int64_t first, int32_t* out) const;
  // Calls f with a pointer to token `first` in the type that the file has.
  template <typename F>
  auto Visit(int64_t first, F f) const;

  std::string path_;
  std::shared_ptr<const std::byte> file_;
  const std::byte* data_;
  int64_t tokens_;
  Type type_;
  Options options_;
};

}  // namespace pp
