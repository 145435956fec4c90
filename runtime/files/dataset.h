// A file of training data, cut into sequences.
//
// Three formats, told apart by content:
//   llm.c token file   256 int32 (20240520, version 1, number of tokens, zeros), then uint16
//                      tokens, as of GPT-2; or (20240801, version 7 ..) and uint32 tokens, as of
//                      LLaMA 3
//   Megatron dataset   PREFIX.bin (tokens back to back) and PREFIX.idx (header "MMIDIDX"); the
//                      path may name either of them, or PREFIX
//   plain text         every byte is a token; none is 0
// Opening scans it once; afterwards every sequence is read on demand.
//
// Sequence n is the tokens from nT on: T inputs, and as targets the same shifted by one, so that it
// shares its last token with its successor. The last one may be shorter: the file's end. What it
// lacks are inputs 0 and targets -1, which take no part (kernels::kIgnored), so that every token
// but the file's first is a target once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "runtime/files/digest.h"
#include "runtime/files/token_reader.h"
#include "schema/base/status.h"

namespace pp {

class Dataset {
 public:
  struct Options {
    int vocab_size = 0;       // a token t is legal when 0 <= t < vocab_size
    int sequence_length = 0;  // T below, at least 1
  };

  // Errors (Invalid): the file is missing, empty, a directory, truncated, damaged, of a format that
  // is no text (not_text.h), holds fewer than 2 tokens, or holds an illegal token in its first
  // 2^29. Failed: it cannot be read.
  static Result<Dataset> Open(const std::string& path, const Options& options);

  // How many tokens the file holds, and how many sequences: (tokens - 1) / T, rounded up.
  int64_t tokens() const { return reader_->tokens(); }
  int64_t sequences() const { return (tokens() - 2) / options_.sequence_length + 1; }
  // The targets that the last sequence lacks: 0 to T - 1.
  int64_t missing() const { return sequences() * options_.sequence_length - (tokens() - 1); }

  bool is_text() const { return reader_->is_text(); }

  // Of the file with the tokens (see digest.h).
  Result<uint64_t> Digest() const { return pp::Digest(reader_->file()); }

  // The inputs and the targets of sequence n, into T places. Past the last sequence the file starts
  // again: n counts modulo sequences(). Invalid: an illegal token. Failed: the file has been cut
  // short. Nothing is allocated unless there is an error. REQUIRES: n >= 0.
  Status Inputs(int64_t n, int32_t* inputs) const { return Copy(n, 0, 0, inputs); }
  Status Targets(int64_t n, int32_t* targets) const { return Copy(n, 1, -1, targets); }

 private:
  Dataset(std::unique_ptr<TokenReader> reader, const Options& options)
      : reader_(std::move(reader)), options_(options) {}

  Status Scan() const;
  Status Copy(int64_t n, int shift, int32_t missing, int32_t* out) const;

  std::unique_ptr<TokenReader> reader_;
  Options options_;
};

}  // namespace pp
