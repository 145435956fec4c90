#include "runtime/files/dataset.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

namespace pp {
namespace {

constexpr int32_t kTokenFile = 20240520;
constexpr size_t kTokenFileHeader = 256 * sizeof(int32_t);
constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr size_t kIndexHeader = 34;
constexpr int64_t kScannedTokens = int64_t{1} << 29;
constexpr const char* kNeeded = "a text, an llm.c .bin or a Megatron .bin/.idx is needed";

struct Mapping {
  std::shared_ptr<const std::byte> data;
  size_t size;

  std::string_view Start(size_t count) const {
    return {reinterpret_cast<const char*>(data.get()), std::min(count, size)};
  }
};

// The number at a byte offset, aligned or not.
template <typename T>
T Load(const Mapping& map, size_t offset) {
  T value;
  std::memcpy(&value, map.data.get() + offset, sizeof value);
  return value;
}

Status SystemError(const std::string& path) {
  return Status::Invalid(
      fmt::format("{}: {} ({})", path, std::generic_category().message(errno), kNeeded));
}

Result<Mapping> Map(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return SystemError(path);
  struct stat status;
  const bool known = fstat(file, &status) == 0;
  const size_t size = known ? status.st_size : 0;
  void* data = MAP_FAILED;
  if (known && S_ISREG(status.st_mode) && size > 0)
    data = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  errno = error;
  if (!known) return SystemError(path);
  if (!S_ISREG(status.st_mode))
    return Status::Invalid(fmt::format("{}: not a file ({})", path, kNeeded));
  if (size == 0) return Status::Invalid(fmt::format("{}: an empty file ({})", path, kNeeded));
  if (data == MAP_FAILED) return SystemError(path);
  const auto unmap = [size](const std::byte* p) { munmap(const_cast<std::byte*>(p), size); };
  return Mapping{{static_cast<const std::byte*>(data), unmap}, size};
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// PREFIX of PREFIX.bin or PREFIX.idx.
std::string WithoutExtension(const std::string& path) {
  return path.ends_with(".bin") || path.ends_with(".idx") ? path.substr(0, path.size() - 4) : path;
}

// The number of tokens in an llm.c token file.
Result<int64_t> TokenFileTokens(const std::string& path, const Mapping& map) {
  if (map.size < kTokenFileHeader)
    return Status::Invalid(fmt::format("{}: truncated: {} bytes (the header alone has {})", path,
                                       map.size, kTokenFileHeader));
  const int32_t version = Load<int32_t>(map, 4), tokens = Load<int32_t>(map, 8);
  if (version != 1)
    return Status::Invalid(
        fmt::format("{}: an llm.c token file of version {} (1 is read)", path, version));
  if (tokens < 0)
    return Status::Invalid(
        fmt::format("{}: damaged: {} tokens (a number from 0 is needed)", path, tokens));
  const size_t expected = kTokenFileHeader + size_t{2} * tokens;
  if (map.size != expected)
    return Status::Invalid(fmt::format("{}: {}: {} bytes ({} by its header: {} tokens)", path,
                                       map.size < expected ? "truncated" : "damaged", map.size,
                                       expected, tokens));
  return tokens;
}

// The bytes of a token, or 0 for what is no integer type.
int64_t TypeSize(int code) {
  constexpr int64_t kSize[] = {0, 1, 1, 2, 4, 8, 0, 0, 2};
  return code >= 0 && code <= 8 ? kSize[code] : 0;
}

// The number of bytes that the sequences of a Megatron index take in its .bin. They must lie
// there back to back, as its own writer leaves them.
Result<int64_t> IndexedBytes(const std::string& path, const Mapping& map) {
  const auto damaged = [&](const std::string& what) {
    return Status::Invalid(fmt::format("{}: damaged index: {}", path, what));
  };
  if (map.Start(kIndexMagic.size()) != kIndexMagic) return damaged("no MMIDIDX at its start");
  if (map.size < kIndexHeader)
    return damaged(fmt::format("{} bytes (the header alone has {})", map.size, kIndexHeader));
  const uint64_t version = Load<uint64_t>(map, 9);
  if (version != 1) return damaged(fmt::format("version {} (1 is read)", version));
  const int code = Load<uint8_t>(map, 17);
  if (TypeSize(code) == 0)
    return damaged(fmt::format("token type {} (integers are read: 1 to 5 and 8)", code));

  // A sum that wrapped around is caught: the counts themselves are then too large.
  const uint64_t sequences = Load<uint64_t>(map, 18), documents = Load<uint64_t>(map, 26);
  const uint64_t arrays = 12 * sequences + 8 * documents;
  if (sequences > map.size || documents > map.size ||
      (map.size != kIndexHeader + arrays && map.size != kIndexHeader + arrays + sequences))
    return damaged(fmt::format("{} sequences and {} document ends do not fit its {} bytes",
                               sequences, documents, map.size));
  const size_t pointers = kIndexHeader + 4 * sequences;
  int64_t bytes = 0;
  for (uint64_t i = 0; i < sequences; ++i) {
    const int32_t length = Load<int32_t>(map, kIndexHeader + 4 * i);
    const int64_t start = Load<int64_t>(map, pointers + 8 * i);
    if (length < 0 || start != bytes)
      return damaged(
          fmt::format("sequence {} has {} tokens from byte {} (from byte {}, the end of "
                      "its predecessor)",
                      i, length, start, bytes));
    bytes += length * TypeSize(code);
  }
  return bytes;
}

}  // namespace

Result<Dataset::Layout> Dataset::FindMegatron(const std::string& prefix) {
  const std::string index_path = prefix + ".idx", path = prefix + ".bin";
  Result<Mapping> index = Map(index_path);
  if (!index.ok()) return index.status();
  const Result<int64_t> bytes = IndexedBytes(index_path, *index);
  if (!bytes.ok()) return bytes.status();
  Result<Mapping> map = Map(path);
  if (!map.ok()) return map.status();
  if (static_cast<int64_t>(map->size) != *bytes)
    return Status::Invalid(
        fmt::format("{}: {} bytes ({} by {})", path, map->size, *bytes, index_path));
  const int code = Load<uint8_t>(*index, 17);
  return Layout{path, map->data, 0, *bytes / TypeSize(code), static_cast<Type>(code)};
}

Result<Dataset::Layout> Dataset::Find(const std::string& path) {
  const std::string prefix = WithoutExtension(path);
  if (!Exists(path) && Exists(path + ".idx")) return FindMegatron(path);
  Result<Mapping> map = Map(path);
  if (!map.ok()) return map.status();
  if (map->size >= sizeof kTokenFile && Load<int32_t>(*map, 0) == kTokenFile) {
    const Result<int64_t> tokens = TokenFileTokens(path, *map);
    if (!tokens.ok()) return tokens.status();
    return Layout{path, map->data, kTokenFileHeader, *tokens, Type::kUint16};
  }
  if (path.ends_with(".idx") || (path.ends_with(".bin") && Exists(prefix + ".idx")))
    return FindMegatron(prefix);
  // Other binary files would train without a complaint, on garbage.
  const size_t zero = map->Start(4096).find('\0');
  if (zero != std::string_view::npos)
    return Status::Invalid(fmt::format("{}: not a text: byte {} is 0 ({})", path, zero, kNeeded));
  return Layout{path, map->data, 0, static_cast<int64_t>(map->size), Type::kUint8};
}

Result<Dataset> Dataset::Open(const std::string& path, const Options& options) {
  PP_CHECK(options.vocab_size >= 1 && options.sequence_length >= 1);
  Result<Layout> layout = Find(path);
  if (!layout.ok()) return layout.status();
  Dataset dataset(*std::move(layout), options);
  if (dataset.tokens_ <= options.sequence_length)
    return Status::Invalid(fmt::format("{}: {} tokens (sequences of {} need at least {})",
                                       dataset.path_, dataset.tokens_, options.sequence_length,
                                       int64_t{options.sequence_length} + 1));
  PP_RETURN_IF_ERROR(dataset.Check(0, std::min(dataset.tokens_, kScannedTokens)));
  return dataset;
}

template <typename F>
auto Dataset::Visit(int64_t first, F f) const {
  switch (type_) {
    case Type::kInt8:
      return f(reinterpret_cast<const int8_t*>(data_) + first);
    case Type::kInt16:
      return f(reinterpret_cast<const int16_t*>(data_) + first);
    case Type::kInt32:
      return f(reinterpret_cast<const int32_t*>(data_) + first);
    case Type::kInt64:
      return f(reinterpret_cast<const int64_t*>(data_) + first);
    case Type::kUint16:
      return f(reinterpret_cast<const uint16_t*>(data_) + first);
    case Type::kUint8:
      break;
  }
  return f(reinterpret_cast<const uint8_t*>(data_) + first);
}

// An error if one of `count` tokens from `first` on is not in the vocabulary.
Status Dataset::Check(int64_t first, int64_t count) const {
  return Visit(first, [&](auto* tokens) {
    using Token = std::remove_cvref_t<decltype(*tokens)>;
    using Unsigned = std::make_unsigned_t<Token>;
    constexpr Token kMax = std::numeric_limits<Token>::max();
    const bool all_fit = std::cmp_greater(options_.vocab_size, kMax);
    if (std::is_unsigned_v<Token> && all_fit) return Status();
    // As an unsigned number a negative token is a large one.
    const Unsigned end = all_fit ? static_cast<Unsigned>(kMax) + 1 : options_.vocab_size;
    // Blocks without an early exit, so that the compiler can use vector instructions.
    constexpr int64_t kBlock = 4096;
    for (int64_t start = 0; start < count; start += kBlock) {
      const int64_t stop = std::min(start + kBlock, count);
      bool bad = false;
      for (int64_t i = start; i < stop; ++i) bad |= static_cast<Unsigned>(tokens[i]) >= end;
      if (!bad) continue;
      int64_t i = start;
      while (static_cast<Unsigned>(tokens[i]) < end) ++i;
      return Status::Invalid(
          fmt::format("{}: token {} at position {} is not in the vocabulary (0 to {})", path_,
                      int64_t{tokens[i]}, first + i, options_.vocab_size - 1));
    }
    return Status();
  });
}

Status Dataset::Copy(int64_t first, int32_t* out) const {
  const int count = options_.sequence_length;
  PP_RETURN_IF_ERROR(Check(first, count));
  Visit(first, [&](auto* tokens) {
    for (int i = 0; i < count; ++i) out[i] = static_cast<int32_t>(tokens[i]);
  });
  return Status();
}

}  // namespace pp
