// The datasets of Megatron-LM: PREFIX.bin, tokens back to back, and PREFIX.idx, which says of what
// type they are and where the sequences lie that were written. Training takes no notice of those,
// as long as they are back to back, which is how Megatron's own writer leaves them.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/files/token_formats.h"

namespace pp {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr int64_t kHeader = 34;

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// The number at a byte of `bytes`, aligned or not.
template <typename T>
T At(const char* bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

// By its code in an index; none: no integer type.
std::optional<TokenType> TypeOf(int code) {
  switch (code) {
    case 1:
      return TokenType::kUint8;
    case 2:
      return TokenType::kInt8;
    case 3:
      return TokenType::kInt16;
    case 4:
      return TokenType::kInt32;
    case 5:
      return TokenType::kInt64;
    case 8:
      return TokenType::kUint16;
    default:
      return std::nullopt;
  }
}

// What an index says about its .bin: the token type, and the bytes that all sequences take.
struct Indexed {
  TokenType type = TokenType::kUint8;
  int64_t bytes = 0;
};

Status Damaged(const std::string& path, const std::string& what) {
  return Status::Invalid(fmt::format("{}: damaged index: {}", path, what));
}

// Sums up the lengths of the sequences, each of which must begin where its predecessor ends.
Status AddSequences(const std::string& path, const InputFile& file, uint64_t sequences,
                    Indexed* indexed) {
  constexpr uint64_t kBlock = 4096;
  std::vector<int32_t> lengths(kBlock);
  std::vector<int64_t> starts(kBlock);
  for (uint64_t first = 0; first < sequences; first += kBlock) {
    const uint64_t count = std::min(kBlock, sequences - first);
    PP_RETURN_IF_ERROR(file.Read(kHeader + 4 * first, lengths.data(), 4 * count));
    PP_RETURN_IF_ERROR(file.Read(kHeader + 4 * sequences + 8 * first, starts.data(), 8 * count));
    for (uint64_t i = 0; i < count; ++i) {
      if (lengths[i] < 0 || starts[i] != indexed->bytes)
        return Damaged(path, fmt::format("sequence {} has {} tokens from byte {} (from byte {}, "
                                         "the end of its predecessor)",
                                         first + i, lengths[i], starts[i], indexed->bytes));
      indexed->bytes += lengths[i] * SizeOf(indexed->type);
    }
  }
  return {};
}

Result<Indexed> ReadIndex(const std::string& path) {
  const Result<InputFile> file = OpenNotEmpty(path);
  PP_RETURN_IF_ERROR(file.status());
  char header[kHeader] = {};
  PP_RETURN_IF_ERROR(file->Read(0, header, std::min(kHeader, file->bytes())));
  if (!std::string_view(header, kHeader).starts_with(kMagic))
    return Damaged(path, "no MMIDIDX at its start");
  if (file->bytes() < kHeader)
    return Damaged(path, fmt::format("{} bytes (the header alone has {})", file->bytes(), kHeader));
  const auto version = At<uint64_t>(header, 9);
  if (version != 1) return Damaged(path, fmt::format("version {} (1 is read)", version));
  const int code = At<uint8_t>(header, 17);
  const std::optional<TokenType> type = TypeOf(code);
  if (!type)
    return Damaged(path, fmt::format("token type {} (integers are read: 1 to 5 and 8)", code));
  Indexed indexed{.type = *type};

  // A sum that wrapped around is caught: the counts themselves are then too large.
  const auto sequences = At<uint64_t>(header, 18), documents = At<uint64_t>(header, 26);
  const uint64_t arrays = 12 * sequences + 8 * documents, bytes = file->bytes();
  if (sequences > bytes || documents > bytes ||
      (bytes != kHeader + arrays && bytes != kHeader + arrays + sequences))
    return Damaged(path, fmt::format("{} sequences and {} document ends do not fit its {} bytes",
                                     sequences, documents, bytes));
  PP_RETURN_IF_ERROR(AddSequences(path, *file, sequences, &indexed));
  return indexed;
}

}  // namespace

bool IsMegatronPrefix(const std::string& path) { return !Exists(path) && Exists(path + ".idx"); }

Result<std::unique_ptr<TokenReader>> OpenMegatronPrefix(const std::string& prefix, int vocab_size) {
  const std::string index_path = prefix + ".idx", path = prefix + ".bin";
  const Result<Indexed> index = ReadIndex(index_path);
  PP_RETURN_IF_ERROR(index.status());
  Result<InputFile> file = OpenNotEmpty(path);
  PP_RETURN_IF_ERROR(file.status());
  if (file->bytes() != index->bytes)
    return Status::Invalid(
        fmt::format("{}: {} bytes ({} by {})", path, file->bytes(), index->bytes, index_path));
  return std::make_unique<TokenReader>(
      TokenReader::Place{.path = path,
                         .file = std::move(*file),
                         .tokens = index->bytes / SizeOf(index->type),
                         .type = index->type,
                         .most = vocab_size - 1});
}

// By its name alone.
Result<std::unique_ptr<TokenReader>> OpenMegatron(const std::string& path, int vocab_size,
                                                  InputFile*) {
  const std::string prefix = path.substr(0, path.size() - std::min<size_t>(4, path.size()));
  if (path.ends_with(".idx") || (path.ends_with(".bin") && Exists(prefix + ".idx")))
    return OpenMegatronPrefix(prefix, vocab_size);
  return std::unique_ptr<TokenReader>();
}

}  // namespace pp
