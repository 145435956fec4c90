#include "runtime/files/token_formats.h"

#include <fmt/format.h>

namespace pp {
namespace {

// In this order: any other file may be a text.
constexpr decltype(&OpenText) kFormats[] = {OpenTokenFile, OpenLlmC, OpenMegatron, OpenText};

}  // namespace

Result<InputFile> OpenNotEmpty(const std::string& path) {
  Result<InputFile> file = InputFile::Open(path, kTokensNeeded);
  if (file.ok() && file->bytes() == 0)
    return Status::Invalid(fmt::format("{}: an empty file ({})", path, kTokensNeeded));
  return file;
}

Result<std::unique_ptr<TokenReader>> OpenTokens(const std::string& path, int vocab_size) {
  if (IsMegatronPrefix(path)) return OpenMegatronPrefix(path, vocab_size);
  Result<InputFile> file = OpenNotEmpty(path);
  PP_RETURN_IF_ERROR(file.status());
  for (const auto open : kFormats) {
    auto reader = open(path, vocab_size, &*file);
    if (!reader.ok() || *reader != nullptr) return reader;
  }
  PP_CHECK(false);  // OpenText always has an answer
}

}  // namespace pp
