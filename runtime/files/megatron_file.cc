// The datasets of Megatron-LM: PREFIX.bin, tokens back to back, and PREFIX.idx, which says of what
// type they are, where the sequences lie that were written, and with which of them each document
// begins. Training takes no notice of the sequences, as long as they are back to back, which is how
// Megatron's own writer leaves them, and of the documents only where they are packed.
//
//   offset          size
//   0               34          header: "MMIDIDX\0\0", u64 version, u8 type, u64 S, u64 D
//   34              4 S         i32 tokens of each sequence
//   34 + 4 S        8 S         i64 its first byte
//   34 + 12 S       8 D         i64 its first sequence, of each document; then S
//   34 + 12 S + 8 D 0 or S      modes
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

// What an index says about its .bin: the token type, the bytes that all sequences take, how many
// they are, and the entries of its list of documents.
struct Indexed {
  TokenType type = TokenType::kUint8;
  int64_t bytes = 0;
  int64_t sequences = 0, entries = 0;
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

Result<Indexed> ReadIndex(const std::string& path, const InputFile& file) {
  char header[kHeader] = {};
  PP_RETURN_IF_ERROR(file.Read(0, header, std::min(kHeader, file.bytes())));
  if (!std::string_view(header, kHeader).starts_with(kMagic))
    return Damaged(path, "no MMIDIDX at its start");
  if (file.bytes() < kHeader)
    return Damaged(path, fmt::format("{} bytes (the header alone has {})", file.bytes(), kHeader));
  const auto version = At<uint64_t>(header, 9);
  if (version != 1) return Damaged(path, fmt::format("version {} (1 is read)", version));
  const int code = At<uint8_t>(header, 17);
  const std::optional<TokenType> type = TypeOf(code);
  if (!type)
    return Damaged(path, fmt::format("token type {} (integers are read: 1 to 5 and 8)", code));
  Indexed indexed{.type = *type};

  // A sum that wrapped around is caught: the counts themselves are then too large.
  const auto sequences = At<uint64_t>(header, 18), documents = At<uint64_t>(header, 26);
  const uint64_t arrays = 12 * sequences + 8 * documents, bytes = file.bytes();
  if (sequences > bytes || documents > bytes ||
      (bytes != kHeader + arrays && bytes != kHeader + arrays + sequences))
    return Damaged(path, fmt::format("{} sequences and {} document ends do not fit its {} bytes",
                                     sequences, documents, bytes));
  indexed.sequences = static_cast<int64_t>(sequences);
  indexed.entries = static_cast<int64_t>(documents);
  PP_RETURN_IF_ERROR(AddSequences(path, file, sequences, &indexed));
  return indexed;
}

class MegatronReader : public TokenReader {
 public:
  MegatronReader(Place place, std::string index_path, InputFile index, const Indexed& indexed)
      : TokenReader(std::move(place)),
        index_path_(std::move(index_path)),
        index_(std::move(index)),
        indexed_(indexed) {}

  int64_t documents() const override { return std::max<int64_t>(0, indexed_.entries - 1); }
  const InputFile* documents_file() const override { return &index_; }

  Status DocumentStarts(int64_t first, int64_t count, int64_t* starts) const override {
    PP_RETURN_IF_ERROR(ReadEntries(first, count, starts));
    for (int64_t i = 0; i < count; ++i) {
      if (starts[i] == indexed_.sequences) {
        starts[i] = tokens();
        continue;
      }
      PP_RETURN_IF_ERROR(index_.Read(kHeader + 4 * indexed_.sequences + 8 * starts[i], &starts[i],
                                     sizeof starts[i]));
      starts[i] /= SizeOf(indexed_.type);
    }
    return {};
  }

  Status CheckDocuments() const override {
    std::vector<int64_t> entries(std::min<int64_t>(indexed_.entries, 4096));
    int64_t least = 0;
    for (int64_t first = 0, count = 0; first < indexed_.entries; first += count) {
      count = std::min(std::ssize(entries), indexed_.entries - first);
      PP_RETURN_IF_ERROR(ReadEntries(first, count, entries.data()));
      for (int64_t i = 0; i < count; least = entries[i++]) {
        const int64_t number = first + i, last = indexed_.entries - 1;
        const int64_t most = number == 0 ? 0 : indexed_.sequences;
        if (number == last && last > 0) least = most;
        if (entries[i] < least || entries[i] > most)
          return Damaged(index_path_,
                         fmt::format("document {} begins with sequence {} ({} to {} are possible)",
                                     number, entries[i], least, most));
      }
    }
    return {};
  }

 private:
  Status ReadEntries(int64_t first, int64_t count, int64_t* entries) const {
    return index_.Read(kHeader + 12 * indexed_.sequences + 8 * first, entries, 8 * count);
  }

  const std::string index_path_;
  const InputFile index_;
  const Indexed indexed_;
};

}  // namespace

bool IsMegatronPrefix(const std::string& path) { return !Exists(path) && Exists(path + ".idx"); }

Result<std::unique_ptr<TokenReader>> OpenMegatronPrefix(const std::string& prefix, int vocab_size) {
  const std::string index_path = prefix + ".idx", path = prefix + ".bin";
  Result<InputFile> index_file = OpenNotEmpty(index_path);
  PP_RETURN_IF_ERROR(index_file.status());
  const Result<Indexed> index = ReadIndex(index_path, *index_file);
  PP_RETURN_IF_ERROR(index.status());
  Result<InputFile> file = OpenNotEmpty(path);
  PP_RETURN_IF_ERROR(file.status());
  if (file->bytes() != index->bytes)
    return Status::Invalid(
        fmt::format("{}: {} bytes ({} by {})", path, file->bytes(), index->bytes, index_path));
  std::unique_ptr<TokenReader> reader(
      new MegatronReader({.path = path,
                          .file = std::move(*file),
                          .tokens = index->bytes / SizeOf(index->type),
                          .type = index->type,
                          .most = vocab_size - 1},
                         index_path, std::move(*index_file), *index));
  return reader;
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
