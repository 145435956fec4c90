// The token files of llm.c: 256 int32 (20240520, version 1, number of tokens, zeros), then uint16
// tokens, as of GPT-2; or (20240801, version 7 ..) and uint32 tokens, as of LLaMA 3.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/files/token_formats.h"

namespace pp {
namespace {

struct Kind {
  int32_t magic, version;
  TokenType type;
};
constexpr Kind kKinds[] = {{20240520, 1, TokenType::kUint16}, {20240801, 7, TokenType::kUint32}};
constexpr int64_t kHeader = 256 * sizeof(int32_t);

// The number of tokens.
Result<int64_t> ReadHeader(const std::string& path, const InputFile& file, const Kind& kind) {
  if (file.bytes() < kHeader)
    return Status::Invalid(fmt::format("{}: truncated: {} bytes (the header alone has {})", path,
                                       file.bytes(), kHeader));
  std::array<int32_t, 3> header;
  PP_RETURN_IF_ERROR(file.Read(0, header.data(), sizeof header));
  const auto [magic, version, tokens] = header;
  if (version != kind.version)
    return Status::Invalid(fmt::format("{}: an llm.c token file of version {} ({} is read)", path,
                                       version, kind.version));
  if (tokens < 0)
    return Status::Invalid(
        fmt::format("{}: damaged: {} tokens (a number from 0 is needed)", path, tokens));
  const int64_t expected = kHeader + SizeOf(kind.type) * tokens;
  if (file.bytes() != expected)
    return Status::Invalid(fmt::format("{}: {}: {} bytes ({} by its header: {} tokens)", path,
                                       file.bytes() < expected ? "truncated" : "damaged",
                                       file.bytes(), expected, tokens));
  return tokens;
}

}  // namespace

Result<std::unique_ptr<TokenReader>> OpenLlmC(const std::string& path, int vocab_size,
                                              InputFile* file) {
  int32_t magic = 0;
  PP_RETURN_IF_ERROR(file->Read(0, &magic, std::min<int64_t>(sizeof magic, file->bytes())));
  for (const Kind& kind : kKinds) {
    if (magic != kind.magic) continue;
    const Result<int64_t> tokens = ReadHeader(path, *file, kind);
    PP_RETURN_IF_ERROR(tokens.status());
    return std::make_unique<TokenReader>(TokenReader::Place{.path = path,
                                                            .file = std::move(*file),
                                                            .offset = kHeader,
                                                            .tokens = *tokens,
                                                            .type = kind.type,
                                                            .most = vocab_size - 1});
  }
  return std::unique_ptr<TokenReader>();
}

}  // namespace pp
