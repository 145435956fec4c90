// Training data: the tokens of one file or of several, one after the other, cut into sequences.
//
// Four formats, told apart by content:
//   token file         of tools/tokens (token_file.h), which says which tokens count as targets
//   llm.c token file   256 int32 (20240520, version 1, number of tokens, zeros), then uint16
//                      tokens, as of GPT-2; or (20240801, version 7 ..) and uint32 tokens, as of
//                      LLaMA 3
//   Megatron dataset   PREFIX.bin (tokens back to back) and PREFIX.idx (header "MMIDIDX"); the
//                      path may name either of them, or PREFIX
//   plain text         every byte is a token; none is 0
// Files of different formats go together, but not texts with tokens. Opening scans them once;
// afterwards every sequence is read on demand. All of them stay open, so that a file that gets
// another name or another one in its place is still the one that was checked: a process that has
// many raises its limit before (AllowManyFiles).
//
// Sequence n is the tokens from nT on, whatever file they are in: T inputs, and as targets the same
// shifted by one, so that it shares its last token with its successor. The last one may be shorter:
// the end of the data. What it lacks are inputs 0 and targets -1, which take no part
// (kernels::kIgnored), so that every token but the first is a target once. One of which its file
// says that it does not count is -1, too.
//
// Sequences may be packed documents, which do not see one another: each begins at position 0, a
// sequence begins one anew, and the first token of a document is no target. Where they begin the
// files say (token files, Megatron datasets), or a token that ends each; a file's first token
// begins one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/files/token_reader.h"
#include "schema/base/status.h"

namespace pp {

// What errors call several files: "a.txt and 2 more". REQUIRES: at least one.
std::string Named(const std::vector<std::string>& paths);

class Dataset {
 public:
  struct Options {
    int vocab_size = 0;       // a token t is legal when 0 <= t < vocab_size
    int sequence_length = 0;  // T below, at least 1
    // Sequences are packed documents; each ends with a token, or the files say where they begin.
    bool documents = false;
    std::optional<int32_t> end_of_text;
  };

  // In this order; a file may be there twice. Errors (Invalid): a file is missing, empty, a
  // directory, truncated, damaged, of a format that is no text (not_text.h), or does not go with
  // the first, or does not say where its documents begin; all together hold fewer than 2 tokens,
  // none that counts as a target, or an illegal token in the first 2^29 of those that no header
  // vouches for. Failed: one cannot be read, or this process may not open so many. REQUIRES: at
  // least one path.
  static Result<Dataset> Open(const std::vector<std::string>& paths, const Options& options);

  // How many tokens there are, and how many sequences: (tokens - 1) / T, rounded up.
  int64_t tokens() const { return begins_.back(); }
  int64_t sequences() const { return (tokens() - 2) / options_.sequence_length + 1; }
  // The targets that the last sequence lacks: 0 to T - 1.
  int64_t missing() const { return sequences() * options_.sequence_length - (tokens() - 1); }

  bool is_text() const { return files_[0]->is_text(); }
  // Every so many tokens are one example, in all files; 0: they are a stream.
  int64_t row() const { return files_[0]->row(); }
  // Whether some targets may not count.
  bool has_uncounted_targets() const;
  // Whether sequences are packed documents.
  bool has_documents() const { return options_.documents; }

  // The targets of `count` sequences from n on, and how many of them count. Reads no tokens, but
  // target bits and, of packed documents, what says where they begin. Failed: a file has been cut
  // short. Nothing is allocated unless there is an error. REQUIRES: 0 <= n, n + count <=
  // sequences().
  int64_t Positions(int64_t n, int64_t count) const;
  Result<int64_t> Counted(int64_t n, int64_t count = 1) const;
  // The same of the first `length` places of sequence n.
  int64_t PositionsOf(int64_t n, int64_t length) const { return std::min(Positions(n, 1), length); }
  Result<int64_t> CountedOf(int64_t n, int64_t length) const;

  // Of the files with the tokens (see digest.h), and of those that say where packed documents
  // begin.
  Result<uint64_t> Digest() const;

  // Tokens, from `first` on. Invalid: an illegal one. Failed: a file has been cut short. Nothing is
  // allocated unless there is an error. REQUIRES: 0 <= first, first + count <= tokens().
  Status Read(int64_t first, int64_t count, int32_t* out) const;

  // The inputs and the targets of the first places of sequence n, as many as there is room for, at
  // most T. Past the last sequence the data starts again: n counts modulo sequences(). Errors:
  // those of Read. REQUIRES: n >= 0.
  Status Inputs(int64_t n, std::span<int32_t> inputs) const { return Copy(n, 0, 0, inputs); }
  Status Targets(int64_t n, std::span<int32_t> targets) const;
  // Of packed documents: the position of each input in its document.
  Status DocumentPositions(int64_t n, std::span<int32_t> positions) const;

 private:
  explicit Dataset(const Options& options) : options_(options) {}

  Status Add(std::unique_ptr<TokenReader> file);
  Status Scan() const;
  Result<bool> HasTargets() const;
  Result<int64_t> CountedIn(const TokenReader& file, int64_t first, int64_t count) const;
  // Puts -1 for each of these tokens of a file that begins a document, if they are packed.
  Status MarkStarts(const TokenReader& file, int64_t first, int64_t count, int32_t* marks) const;
  Status Copy(int64_t n, int shift, int32_t missing, std::span<int32_t> out) const;
  Result<int64_t> CountedFrom(int64_t n, int64_t positions) const;
  // Calls f(file, first, count) for the part of each file in these tokens.
  template <typename F>
  Status ForEachPart(int64_t first, int64_t count, F f) const;

  Options options_;
  std::vector<std::unique_ptr<TokenReader>> files_;
  std::vector<int64_t> begins_ = {0};  // of the files, in all tokens; and the end
};

}  // namespace pp
