// A text that is read once, from its beginning to its end: of a file, standard input or a pipe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "schema/base/disk.h"
#include "schema/base/status.h"

namespace pp {

class TextSource {
 public:
  // Errors: those of InputFile, but a pipe is right, too.
  static Result<TextSource> Open(const std::string& path, const std::string& right);
  TextSource(TextSource&& other) noexcept;
  TextSource& operator=(TextSource&&) = delete;
  ~TextSource();

  // Of a file, when it was opened; of a stream 0.
  int64_t bytes() const { return file_ ? file_->bytes() : 0; }
  // The next piece, which stays until the next call; at the end, an empty one. A pipe ends when its
  // last writer closes it; one that nobody has opened for writing has no text. Invalid: the whole
  // text is empty.
  Result<std::string_view> Next();

 private:
  TextSource(std::string path, std::string right);
  Result<size_t> FillFromFile();
  Result<size_t> FillFromStream();

  std::string path_, right_;
  std::optional<InputFile> file_;  // else a stream
  int descriptor_ = -1;
  int64_t read_ = 0;  // bytes so far
  std::string piece_;
};

// All of it. Invalid, too: it has more than `most_bytes`.
Result<std::string> ReadText(const std::string& path, const std::string& right, int64_t most_bytes);

}  // namespace pp
