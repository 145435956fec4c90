#include "runtime/files/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/files/token_formats.h"

namespace pp {
namespace {

constexpr int64_t kWordsPerCount = kTokensPerCount / 64;
constexpr int64_t kBlock = 1 << 15;  // words that are verified at a time, whole counts

Status Damaged(const std::string& path, const std::string& what) {
  return Status::Invalid(fmt::format("{}: damaged: {}", path, what));
}

// How many bits of `count` words are 1. The instruction is not in every x86-64 processor, and what
// stands for it takes ten times as long.
#ifdef __x86_64__
__attribute__((target("popcnt"))) int64_t CountBitsFast(const uint64_t* words, int64_t count) {
  int64_t bits = 0;
  for (int64_t i = 0; i < count; ++i) bits += __builtin_popcountll(words[i]);
  return bits;
}
#endif

int64_t CountBits(const uint64_t* words, int64_t count) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("popcnt")) return CountBitsFast(words, count);
#endif
  int64_t bits = 0;
  for (int64_t i = 0; i < count; ++i) bits += std::popcount(words[i]);
  return bits;
}

int64_t WordsFor(int64_t tokens) { return (tokens + 63) / 64; }

class TokenFile : public TokenReader {
 public:
  TokenFile(Place place, const TokenFileHeader& header)
      : TokenReader(std::move(place)), header_(header), sections_(header) {}

  bool knows_largest() const override { return true; }
  int64_t row() const override { return static_cast<int64_t>(header_.row); }
  bool has_target_bits() const override { return (header_.flags & kHasTargetBits) != 0; }
  Result<int64_t> CountedBefore(int64_t token) const override;
  Status Mask(int64_t first, int64_t count, int32_t* targets) const override;
  int64_t documents() const override { return static_cast<int64_t>(header_.documents); }
  Status DocumentStarts(int64_t first, int64_t count, int64_t* starts) const override {
    return ReadWords(sections_.starts, first, count, reinterpret_cast<uint64_t*>(starts));
  }

  // All but the header and the tokens.
  Status Verify();

 private:
  Status Illegal(int64_t token, int64_t position) const override;
  Status VerifyGap() const;
  Status VerifyStarts() const;
  Status VerifyBits();

  // Words of a section, from number `first` on.
  Status ReadWords(unsigned __int128 section, int64_t first, int64_t count, uint64_t* words) const {
    return file().Read(static_cast<int64_t>(section) + 8 * first, words, 8 * count);
  }

  const TokenFileHeader header_;
  const TokenFileSections sections_;
  std::vector<uint64_t> counts_;
};

Status TokenFile::Illegal(int64_t token, int64_t position) const {
  return Damaged(path(), fmt::format("token {} at position {} (at most {} by its header)", token,
                                     position, header_.largest));
}

Result<int64_t> TokenFile::CountedBefore(int64_t token) const {
  if (!has_target_bits()) return token;
  if (token == tokens()) return static_cast<int64_t>(header_.counted);
  const int64_t block = token / kTokensPerCount, first = block * kWordsPerCount;
  const int64_t whole = token / 64 - first, rest = token % 64;
  std::array<uint64_t, kWordsPerCount> words;
  PP_RETURN_IF_ERROR(ReadWords(sections_.bits, first, whole + (rest > 0 ? 1 : 0), words.data()));
  if (rest > 0) words[whole] <<= 64 - rest;
  return static_cast<int64_t>(counts_[block]) + CountBits(words.data(), whole + (rest > 0 ? 1 : 0));
}

Status TokenFile::Mask(int64_t first, int64_t count, int32_t* targets) const {
  if (!has_target_bits()) return {};
  std::array<uint64_t, 256> words;
  for (const int64_t end = first + count; first < end;) {
    const int64_t word = first / 64;
    const int64_t last = std::min(end, (word + std::ssize(words)) * 64);
    PP_RETURN_IF_ERROR(ReadWords(sections_.bits, word, WordsFor(last) - word, words.data()));
    while (first < last) {
      const uint64_t bits = words[first / 64 - word];
      const int64_t there = std::min(last, (first / 64 + 1) * 64) - first;
      for (int64_t i = 0; bits != ~uint64_t{} && i < there; ++i)
        if ((bits >> (first + i) % 64 & 1) == 0) targets[i] = -1;
      first += there;
      targets += there;
    }
  }
  return {};
}

Status TokenFile::Verify() {
  PP_RETURN_IF_ERROR(VerifyGap());
  PP_RETURN_IF_ERROR(VerifyStarts());
  return has_target_bits() ? VerifyBits() : Status();
}

Status TokenFile::VerifyGap() const {
  const auto begin = static_cast<int64_t>(sections_.tokens) + header_.token_bytes * tokens();
  char gap[8] = {};
  const auto count = static_cast<int64_t>(sections_.starts) - begin;
  PP_RETURN_IF_ERROR(file().Read(begin, gap, count));
  const auto* bad = std::find_if(gap, gap + count, [](char byte) { return byte != 0; });
  if (bad == gap + count) return {};
  return Damaged(path(), fmt::format("byte {}, between tokens and document starts, is {} (0 is "
                                     "needed)",
                                     begin + (bad - gap), static_cast<unsigned char>(*bad)));
}

Status TokenFile::VerifyStarts() const {
  const auto documents = static_cast<int64_t>(header_.documents);
  std::vector<uint64_t> starts(std::min(documents, kBlock));
  uint64_t least = 0;
  for (int64_t first = 0; first < documents; first += kBlock) {
    const int64_t count = std::min(kBlock, documents - first);
    PP_RETURN_IF_ERROR(ReadWords(sections_.starts, first, count, starts.data()));
    for (int64_t i = 0; i < count; ++i) {
      if (first + i == 0 && starts[0] != 0)
        return Damaged(
            path(), fmt::format("its first document begins at token {} (0 is needed)", starts[0]));
      if (starts[i] < least || starts[i] >= header_.tokens)
        return Damaged(path(), fmt::format("document {}, counted from 0, begins at token {} ({} to "
                                           "{} are possible)",
                                           first + i, starts[i], least, header_.tokens - 1));
      least = starts[i] + 1;
    }
  }
  return {};
}

// The bits against the counts, which are kept.
Status TokenFile::VerifyBits() {
  counts_.resize((tokens() + kTokensPerCount - 1) / kTokensPerCount);
  PP_RETURN_IF_ERROR(ReadWords(sections_.counts, 0, std::ssize(counts_), counts_.data()));
  const int64_t all = WordsFor(tokens());
  std::vector<uint64_t> words(std::min(all, kBlock));
  uint64_t counted = 0;
  for (int64_t first = 0; first < all; first += kBlock) {
    const int64_t count = std::min(kBlock, all - first);
    PP_RETURN_IF_ERROR(ReadWords(sections_.bits, first, count, words.data()));
    for (int64_t i = 0; i < count; i += kWordsPerCount) {
      const int64_t block = (first + i) / kWordsPerCount;
      if (counts_[block] != counted)
        return Damaged(path(), fmt::format("count {}, counted from 0, is {} (its target bits make "
                                           "{})",
                                           block, counts_[block], counted));
      counted += CountBits(&words[i], std::min(kWordsPerCount, count - i));
    }
    if (first + count == all && tokens() % 64 != 0 && words[count - 1] >> (tokens() % 64) != 0)
      return Damaged(
          path(),
          fmt::format("target bits of tokens after its last one, {} (they are 0)", tokens() - 1));
  }
  if (counted == header_.counted) return {};
  return Damaged(path(), fmt::format("{} tokens count as targets by its header ({} by its target "
                                     "bits)",
                                     header_.counted, counted));
}

// What can be said of the header alone.
Status CheckHeader(const std::string& path, const TokenFileHeader& header, int64_t bytes) {
  if (header.version != kTokenFileVersion)
    return Status::Invalid(fmt::format("{}: a token file of version {} ({} is read)", path,
                                       header.version, kTokenFileVersion));
  if (header.token_bytes != 2 && header.token_bytes != 4)
    return Damaged(path, fmt::format("{} bytes of a token (2 or 4)", header.token_bytes));
  if ((header.flags & ~kHasTargetBits) != 0)
    return Damaged(path, fmt::format("flags {} (0 or 1)", header.flags));
  if (header.zero != 0)
    return Damaged(path, fmt::format("{} at byte 56 of its header (0 is needed)", header.zero));
  const bool masked = (header.flags & kHasTargetBits) != 0;
  const auto all = static_cast<uint64_t>(bytes);
  if (header.tokens > all || header.documents > all)
    return Damaged(path, fmt::format("{} tokens and {} documents do not fit its {} bytes",
                                     header.tokens, header.documents, bytes));
  if (const TokenFileSections sections(header); sections.end != all)
    return Status::Invalid(fmt::format(
        "{}: {}: {} bytes ({} by its header: {} tokens of {} bytes, {} documents, {} target bits)",
        path, all < sections.end ? "truncated" : "damaged", bytes,
        static_cast<uint64_t>(sections.end), header.tokens, header.token_bytes, header.documents,
        masked ? "with" : "no"));
  if (header.row > 0 && header.tokens % header.row != 0)
    return Damaged(path, fmt::format("{} tokens (a multiple of {}, its row, is needed)",
                                     header.tokens, header.row));
  if (header.token_bytes == 2 && header.largest > std::numeric_limits<uint16_t>::max())
    return Damaged(path,
                   fmt::format("largest token {} (at most 65535 in 2 bytes)", header.largest));
  if (header.tokens == 0 && header.largest != 0)
    return Damaged(path, fmt::format("largest token {} of none (0)", header.largest));
  if (masked ? header.counted > header.tokens : header.counted != header.tokens)
    return Damaged(path, fmt::format("{} tokens count as targets ({}{}, all its tokens)",
                                     header.counted, masked ? "at most " : "", header.tokens));
  return {};
}

}  // namespace

TokenFileSections::TokenFileSections(const TokenFileHeader& header) {
  using Wide = unsigned __int128;
  const bool masked = (header.flags & kHasTargetBits) != 0;
  const Wide all = header.tokens;
  tokens = sizeof header;
  starts = tokens + (all * header.token_bytes + 7) / 8 * 8;
  bits = starts + Wide{8} * header.documents;
  counts = bits + (masked ? (all + 63) / 64 * 8 : 0);
  end = counts + (masked ? (all + kTokensPerCount - 1) / kTokensPerCount * 8 : 0);
}

Result<std::unique_ptr<TokenReader>> OpenTokenFile(const std::string& path, int vocab_size,
                                                   InputFile* file) {
  TokenFileHeader header{};
  const int64_t there = std::min<int64_t>(sizeof header, file->bytes());
  PP_RETURN_IF_ERROR(file->Read(0, &header, there));
  if (std::memcmp(header.magic, kTokenFileMagic, sizeof header.magic) != 0)
    return std::unique_ptr<TokenReader>();
  if (there < int64_t{sizeof header})
    return Status::Invalid(fmt::format("{}: truncated: {} bytes (the header alone has {})", path,
                                       there, sizeof header));
  PP_RETURN_IF_ERROR(CheckHeader(path, header, file->bytes()));
  if (header.tokens > 0 && header.largest >= static_cast<uint32_t>(vocab_size))
    return Status::Invalid(
        fmt::format("{}: token {}, its largest, is not in the vocabulary (0 to "
                    "{})",
                    path, header.largest, vocab_size - 1));
  auto reader = std::make_unique<TokenFile>(
      TokenReader::Place{.path = path,
                         .file = std::move(*file),
                         .offset = sizeof header,
                         .tokens = static_cast<int64_t>(header.tokens),
                         .type = header.token_bytes == 2 ? TokenType::kUint16 : TokenType::kUint32,
                         .most = header.largest},
      header);
  PP_RETURN_IF_ERROR(reader->Verify());
  return std::unique_ptr<TokenReader>(std::move(reader));
}

}  // namespace pp
