#include "runtime/files/dataset.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/files/not_text.h"

namespace pp {
namespace {

// The two kinds of llm.c's token files.
struct TokenFile {
  int32_t magic, version;
  int64_t token_bytes;
};
constexpr TokenFile kTokenFiles[] = {{20240520, 1, 2}, {20240801, 7, 4}};
constexpr int64_t kTokenFileHeader = 256 * sizeof(int32_t);
constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr int64_t kIndexHeader = 34;
constexpr int64_t kScannedTokens = int64_t{1} << 29;
constexpr const char* kNeeded = "a text, an llm.c .bin or a Megatron .bin/.idx is needed";

Result<InputFile> Open(const std::string& path) {
  Result<InputFile> file = InputFile::Open(path, kNeeded);
  if (file.ok() && file->bytes() == 0)
    return Status::Invalid(fmt::format("{}: an empty file ({})", path, kNeeded));
  return file;
}

// The number at a byte of `bytes`, aligned or not.
template <typename T>
T At(const char* bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// PREFIX of PREFIX.bin or PREFIX.idx.
std::string WithoutExtension(const std::string& path) {
  return path.ends_with(".bin") || path.ends_with(".idx") ? path.substr(0, path.size() - 4) : path;
}

// The number of tokens in an llm.c token file.
Result<int64_t> TokenFileTokens(const std::string& path, const InputFile& file,
                                const TokenFile& kind) {
  if (file.bytes() < kTokenFileHeader)
    return Status::Invalid(fmt::format("{}: truncated: {} bytes (the header alone has {})", path,
                                       file.bytes(), kTokenFileHeader));
  std::array<int32_t, 3> header;
  PP_RETURN_IF_ERROR(file.Read(0, header.data(), sizeof header));
  const auto [magic, version, tokens] = header;
  if (version != kind.version)
    return Status::Invalid(fmt::format("{}: an llm.c token file of version {} ({} is read)", path,
                                       version, kind.version));
  if (tokens < 0)
    return Status::Invalid(
        fmt::format("{}: damaged: {} tokens (a number from 0 is needed)", path, tokens));
  const int64_t expected = kTokenFileHeader + kind.token_bytes * tokens;
  if (file.bytes() != expected)
    return Status::Invalid(fmt::format("{}: {}: {} bytes ({} by its header: {} tokens)", path,
                                       file.bytes() < expected ? "truncated" : "damaged",
                                       file.bytes(), expected, tokens));
  return tokens;
}

// The bytes of a token, or 0 for a code that is not an integer type of Megatron's.
int64_t TypeSize(int code) {
  constexpr int64_t kSize[] = {0, 1, 1, 2, 4, 8, 0, 0, 2};
  return code >= 0 && code <= 8 ? kSize[code] : 0;
}

// What a Megatron index says about its .bin: the token type, and the bytes that all sequences take.
// They must be back to back there, as Megatron's own writer leaves them.
struct Indexed {
  int type = 0;
  int64_t bytes = 0;
};

Result<Indexed> ReadIndex(const std::string& path) {
  const auto damaged = [&](const std::string& what) {
    return Status::Invalid(fmt::format("{}: damaged index: {}", path, what));
  };
  const Result<InputFile> file = Open(path);
  PP_RETURN_IF_ERROR(file.status());
  char header[kIndexHeader] = {};
  PP_RETURN_IF_ERROR(file->Read(0, header, std::min(kIndexHeader, file->bytes())));
  if (!std::string_view(header, kIndexHeader).starts_with(kIndexMagic))
    return damaged("no MMIDIDX at its start");
  if (file->bytes() < kIndexHeader)
    return damaged(fmt::format("{} bytes (the header alone has {})", file->bytes(), kIndexHeader));
  const auto version = At<uint64_t>(header, 9);
  if (version != 1) return damaged(fmt::format("version {} (1 is read)", version));
  Indexed indexed{.type = At<uint8_t>(header, 17)};
  if (TypeSize(indexed.type) == 0)
    return damaged(fmt::format("token type {} (integers are read: 1 to 5 and 8)", indexed.type));

  // A sum that wrapped around is caught: the counts themselves are then too large.
  const auto sequences = At<uint64_t>(header, 18), documents = At<uint64_t>(header, 26);
  const uint64_t arrays = 12 * sequences + 8 * documents, bytes = file->bytes();
  if (sequences > bytes || documents > bytes ||
      (bytes != kIndexHeader + arrays && bytes != kIndexHeader + arrays + sequences))
    return damaged(fmt::format("{} sequences and {} document ends do not fit its {} bytes",
                               sequences, documents, bytes));
  constexpr uint64_t kBlock = 4096;
  std::vector<int32_t> lengths(kBlock);
  std::vector<int64_t> starts(kBlock);
  for (uint64_t first = 0; first < sequences; first += kBlock) {
    const uint64_t count = std::min(kBlock, sequences - first);
    PP_RETURN_IF_ERROR(file->Read(kIndexHeader + 4 * first, lengths.data(), 4 * count));
    PP_RETURN_IF_ERROR(
        file->Read(kIndexHeader + 4 * sequences + 8 * first, starts.data(), 8 * count));
    for (uint64_t i = 0; i < count; ++i) {
      if (lengths[i] < 0 || starts[i] != indexed.bytes)
        return damaged(
            fmt::format("sequence {} has {} tokens from byte {} (from byte {}, the end of "
                        "its predecessor)",
                        first + i, lengths[i], starts[i], indexed.bytes));
      indexed.bytes += lengths[i] * TypeSize(indexed.type);
    }
  }
  return indexed;
}

}  // namespace

Result<Dataset::Layout> Dataset::FindMegatron(const std::string& prefix) {
  const std::string index_path = prefix + ".idx", path = prefix + ".bin";
  const Result<Indexed> index = ReadIndex(index_path);
  PP_RETURN_IF_ERROR(index.status());
  Result<InputFile> file = ::pp::Open(path);
  PP_RETURN_IF_ERROR(file.status());
  if (file->bytes() != index->bytes)
    return Status::Invalid(
        fmt::format("{}: {} bytes ({} by {})", path, file->bytes(), index->bytes, index_path));
  const int64_t size = TypeSize(index->type);
  return Layout{
      path, std::move(*file), 0, index->bytes / size, size, static_cast<Type>(index->type)};
}

Result<Dataset::Layout> Dataset::Find(const std::string& path) {
  const std::string prefix = WithoutExtension(path);
  if (!Exists(path) && Exists(path + ".idx")) return FindMegatron(path);
  Result<InputFile> file = ::pp::Open(path);
  PP_RETURN_IF_ERROR(file.status());
  int32_t start = 0;
  PP_RETURN_IF_ERROR(file->Read(0, &start, std::min<int64_t>(sizeof start, file->bytes())));
  for (const TokenFile& kind : kTokenFiles) {
    if (start != kind.magic) continue;
    const Result<int64_t> tokens = TokenFileTokens(path, *file, kind);
    PP_RETURN_IF_ERROR(tokens.status());
    return Layout{path,    std::move(*file), kTokenFileHeader,
                  *tokens, kind.token_bytes, kind.token_bytes == 2 ? Type::kUint16 : Type::kUint32};
  }
  if (path.ends_with(".idx") || (path.ends_with(".bin") && Exists(prefix + ".idx")))
    return FindMegatron(prefix);
  if (const Result<std::string> what = NotText(path, *file); !what.ok() || !what->empty())
    return what.ok() ? Status::Invalid(fmt::format("{}: is {}, no text ({})", path, *what, kNeeded))
                     : what.status();
  const int64_t bytes = file->bytes();
  return Layout{path, std::move(*file), 0, bytes, 1, Type::kText};
}

Result<Dataset> Dataset::Open(const std::string& path, const Options& options) {
  PP_CHECK(options.vocab_size >= 1 && options.sequence_length >= 1);
  Result<Layout> layout = Find(path);
  if (!layout.ok()) return layout.status();
  Dataset dataset(std::move(*layout), options);
  if (dataset.tokens() < 2)
    return Status::Invalid(
        fmt::format("{}: {} token{} (at least 2: one, and the next one to predict)",
                    dataset.layout_.path, dataset.tokens(), dataset.tokens() == 1 ? "" : "s"));
  PP_RETURN_IF_ERROR(dataset.Scan());
  return dataset;
}

// Calls f with a pointer to `bytes` in the type of the file's tokens.
template <typename F>
auto Dataset::Visit(const std::byte* bytes, F f) const {
  switch (layout_.type) {
    case Type::kInt8:
      return f(reinterpret_cast<const int8_t*>(bytes));
    case Type::kInt16:
      return f(reinterpret_cast<const int16_t*>(bytes));
    case Type::kInt32:
      return f(reinterpret_cast<const int32_t*>(bytes));
    case Type::kInt64:
      return f(reinterpret_cast<const int64_t*>(bytes));
    case Type::kUint16:
      return f(reinterpret_cast<const uint16_t*>(bytes));
    case Type::kUint32:
      return f(reinterpret_cast<const uint32_t*>(bytes));
    case Type::kUint8:
    case Type::kText:
      break;
  }
  return f(reinterpret_cast<const uint8_t*>(bytes));
}

// An error if one of the `count` tokens in `bytes`, the file's from `first` on, is illegal.
Status Dataset::Check(const std::byte* bytes, int64_t first, int64_t count) const {
  return Visit(bytes, [&](auto* tokens) {
    using Token = std::remove_cvref_t<decltype(*tokens)>;
    using Unsigned = std::make_unsigned_t<Token>;
    constexpr Token kMax = std::numeric_limits<Token>::max();
    // As an unsigned number a negative token is a large one. A text has no 0.
    const Unsigned least = layout_.type == Type::kText ? 1 : 0;
    const Unsigned most =
        std::cmp_greater(options_.vocab_size, kMax) ? kMax : options_.vocab_size - 1;
    const auto is_bad = [&](Unsigned token) { return token < least || token > most; };
    bool bad = false;  // no early exit, so that the compiler can use vector instructions
    for (int64_t i = 0; i < count; ++i) bad |= is_bad(tokens[i]);
    if (!bad) return Status();
    int64_t i = 0;
    while (!is_bad(tokens[i])) ++i;
    // Otherwise other binary files would train on garbage without complaint.
    if (layout_.type == Type::kText && tokens[i] == 0)
      return Status::Invalid(
          fmt::format("{}: not a text: byte {} is 0 ({})", layout_.path, first + i, kNeeded));
    return Status::Invalid(
        fmt::format("{}: token {} at position {} is not in the vocabulary (0 to {})", layout_.path,
                    int64_t{tokens[i]}, first + i, options_.vocab_size - 1));
  });
}

// Tokens as they are in the file, all of them legal.
Status Dataset::Read(int64_t first, int64_t count, std::byte* bytes) const {
  const int64_t size = layout_.token_bytes;
  PP_RETURN_IF_ERROR(layout_.file.Read(layout_.offset + first * size, bytes, count * size));
  return Check(bytes, first, count);
}

Status Dataset::Scan() const {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<std::byte> bytes(kBlock * layout_.token_bytes);
  const int64_t end = std::min(layout_.tokens, kScannedTokens);
  for (int64_t first = 0; first < end; first += kBlock) {
    const int64_t count = std::min(kBlock, end - first);
    PP_RETURN_IF_ERROR(Read(first, count, bytes.data()));
  }
  return {};
}

// The tokens of sequence n, each by `shift` tokens later; `missing` where there is no target.
Status Dataset::Copy(int64_t n, int shift, int32_t missing, int32_t* out) const {
  constexpr int64_t kBlock = 1024;
  alignas(int64_t) std::array<std::byte, kBlock * sizeof(int64_t)> bytes;
  const int64_t begin = n % sequences() * options_.sequence_length;
  const int64_t there = std::min<int64_t>(options_.sequence_length, tokens() - 1 - begin);
  std::fill_n(out + there, options_.sequence_length - there, missing);
  const int64_t end = begin + shift + there;
  for (int64_t first = begin + shift; first < end; first += kBlock) {
    const int64_t count = std::min(kBlock, end - first);
    PP_RETURN_IF_ERROR(Read(first, count, bytes.data()));
    Visit(bytes.data(), [&](auto* tokens) {
      for (int64_t i = 0; i < count; ++i) *out++ = static_cast<int32_t>(tokens[i]);
    });
  }
  return {};
}

}  // namespace pp
