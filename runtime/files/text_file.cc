// Plain text: every byte is a token. None is 0; otherwise other binary files would train on garbage
// without complaint.
#include <fmt/format.h>

#include <utility>

#include "runtime/files/not_text.h"
#include "runtime/files/token_formats.h"

namespace pp {
namespace {

class TextReader : public TokenReader {
 public:
  using TokenReader::TokenReader;
  bool is_text() const override { return true; }

 private:
  Status Illegal(int64_t token, int64_t position) const override {
    if (token != 0) return TokenReader::Illegal(token, position);
    return Status::Invalid(
        fmt::format("{}: not a text: byte {} is 0 ({})", path(), position, kTokensNeeded));
  }
};

}  // namespace

Result<std::unique_ptr<TokenReader>> OpenText(const std::string& path, int vocab_size,
                                              InputFile* file) {
  const Result<std::string> what = NotText(path, *file);
  PP_RETURN_IF_ERROR(what.status());
  if (!what->empty())
    return Status::Invalid(fmt::format("{}: is {}, no text ({})", path, *what, kTokensNeeded));
  const int64_t bytes = file->bytes();
  std::unique_ptr<TokenReader> reader(new TextReader({.path = path,
                                                      .file = std::move(*file),
                                                      .tokens = bytes,
                                                      .least = 1,
                                                      .most = vocab_size - 1}));
  return reader;
}

}  // namespace pp
