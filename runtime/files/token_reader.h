// A file of tokens, open for reading, whatever its format: integers back to back somewhere in it.
// The formats are in token_formats.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "schema/base/disk.h"
#include "schema/base/status.h"

namespace pp {

enum class TokenType { kUint8, kInt8, kInt16, kUint16, kInt32, kUint32, kInt64 };

// Of a token, in bytes.
int64_t SizeOf(TokenType type);

class TokenReader {
 public:
  // Where the tokens are, and which ones are legal: least to most.
  struct Place {
    std::string path;
    InputFile file;
    int64_t offset = 0;  // of the first token, in bytes
    int64_t tokens = 0;
    TokenType type = TokenType::kUint8;
    int64_t least = 0, most = 0;
  };
  explicit TokenReader(Place place) : place_(std::move(place)) {}
  virtual ~TokenReader() = default;

  const std::string& path() const { return place_.path; }
  const InputFile& file() const { return place_.file; }
  int64_t tokens() const { return place_.tokens; }
  // Its tokens are bytes of a text.
  virtual bool is_text() const { return false; }
  // Opening has made sure that no token is too large for the vocabulary.
  virtual bool knows_largest() const { return false; }
  // Every so many tokens are one example; 0: they are a stream.
  virtual int64_t row() const { return 0; }
  // It says which tokens count as targets; in others all do.
  virtual bool has_target_bits() const { return false; }
  // How many of the tokens before this one count. REQUIRES: 0 <= token <= tokens().
  virtual Result<int64_t> CountedBefore(int64_t token) const { return token; }
  // Puts -1 for each of the tokens from `first` on that does not count. REQUIRES: as Read.
  virtual Status Mask(int64_t first, int64_t count, int32_t* targets) const;

  // How many documents it has, back to back; 0: it does not say where they begin.
  virtual int64_t documents() const { return 0; }
  // The first tokens of `count` documents from number `first` on. REQUIRES: 0 <= first, first +
  // count <= documents().
  virtual Status DocumentStarts(int64_t first, int64_t count, int64_t* starts) const;
  // That what says so is right, if opening has not made sure of it.
  virtual Status CheckDocuments() const { return {}; }
  // What says so, if it is another file.
  virtual const InputFile* documents_file() const { return nullptr; }
  // Puts -1 for each of the tokens from `first` on that begins a document: the file's first one,
  // and each one behind `end_of_text`, or, without that, those of DocumentStarts. REQUIRES: as
  // Read.
  Status MarkStarts(std::optional<int32_t> end_of_text, int64_t first, int64_t count,
                    int32_t* marks) const;

  // Invalid: an illegal token. Failed, as of all that read: the file has been cut short. Allocates
  // nothing unless there is an error; any number of threads can read. REQUIRES: 0 <= first, first +
  // count <= tokens().
  Status Read(int64_t first, int64_t count, int32_t* out) const;

 protected:
  // The error for a token that is not legal.
  virtual Status Illegal(int64_t token, int64_t position) const;

 private:
  template <typename Token>
  Status Convert(const std::byte* bytes, int64_t first, int64_t count, int32_t* out) const;
  Status Convert(const std::byte* bytes, int64_t first, int64_t count, int32_t* out) const;
  Status MarkBehind(int32_t token, int64_t first, int64_t count, int32_t* marks) const;
  Status MarkDocuments(int64_t first, int64_t count, int32_t* marks) const;

  const Place place_;
};

}  // namespace pp
