#include "runtime/files/token_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <type_traits>

namespace pp {

int64_t SizeOf(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
    case TokenType::kUint32:
      return 4;
    case TokenType::kInt64:
      break;
  }
  return 8;
}

Status TokenReader::Read(int64_t first, int64_t count, int32_t* out) const {
  alignas(int64_t) std::array<std::byte, 16 << 10> bytes;
  const int64_t size = SizeOf(place_.type);
  const int64_t block = static_cast<int64_t>(bytes.size()) / size;
  for (const int64_t end = first + count; first < end; first += block, out += block) {
    const int64_t there = std::min(block, end - first);
    PP_RETURN_IF_ERROR(place_.file.Read(place_.offset + first * size, bytes.data(), there * size));
    PP_RETURN_IF_ERROR(Convert(bytes.data(), first, there, out));
  }
  return {};
}

Status TokenReader::Mask(int64_t, int64_t, int32_t*) const { return {}; }

Status TokenReader::DocumentStarts(int64_t, int64_t, int64_t*) const { return {}; }

Status TokenReader::MarkStarts(std::optional<int32_t> end_of_text, int64_t first, int64_t count,
                               int32_t* marks) const {
  if (first == 0 && count > 0) marks[0] = -1;
  return end_of_text ? MarkBehind(*end_of_text, first, count, marks)
                     : MarkDocuments(first, count, marks);
}

Status TokenReader::MarkBehind(int32_t token, int64_t first, int64_t count, int32_t* marks) const {
  std::array<int32_t, 2048> before;  // what is before each of some tokens
  for (int64_t at = std::max<int64_t>(first, 1), end = first + count; at < end;) {
    const int64_t there = std::min(std::ssize(before), end - at);
    PP_RETURN_IF_ERROR(Read(at - 1, there, before.data()));
    for (int64_t i = 0; i < there; ++i)
      if (before[i] == token) marks[at + i - first] = -1;
    at += there;
  }
  return {};
}

Status TokenReader::MarkDocuments(int64_t first, int64_t count, int32_t* marks) const {
  int64_t low = 0, high = documents();  // the number of the first one from `first` on
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    int64_t start = 0;
    PP_RETURN_IF_ERROR(DocumentStarts(middle, 1, &start));
    start < first ? low = middle + 1 : high = middle;
  }
  std::array<int64_t, 64> starts;
  while (low < documents()) {
    const int64_t there = std::min(std::ssize(starts), documents() - low);
    PP_RETURN_IF_ERROR(DocumentStarts(low, there, starts.data()));
    for (int64_t i = 0; i < there; ++i) {
      if (starts[i] >= first + count) return {};
      if (starts[i] >= first) marks[starts[i] - first] = -1;  // unless the file has changed
    }
    low += there;
  }
  return {};
}

Status TokenReader::Illegal(int64_t token, int64_t position) const {
  return Status::Invalid(
      fmt::format("{}: token {} at position {} is not in the vocabulary (0 to {})", path(), token,
                  position, place_.most));
}

// The `count` tokens in `bytes`, the file's from `first` on.
template <typename Token>
Status TokenReader::Convert(const std::byte* bytes, int64_t first, int64_t count,
                            int32_t* out) const {
  // As an unsigned number a negative token is a large one.
  using Unsigned = std::make_unsigned_t<Token>;
  const auto* tokens = reinterpret_cast<const Token*>(bytes);
  const auto least = static_cast<Unsigned>(place_.least);
  const auto most =
      static_cast<Unsigned>(std::min<int64_t>(place_.most, std::numeric_limits<Token>::max()));
  const auto is_bad = [&](Token token) {
    const auto number = static_cast<Unsigned>(token);
    return number < least || number > most;
  };
  bool bad = false;  // no early exit, so that the compiler can use vector instructions
  for (int64_t i = 0; i < count; ++i) bad |= is_bad(tokens[i]);
  if (bad) {
    const Token* token = std::find_if(tokens, tokens + count, is_bad);
    return Illegal(int64_t{*token}, first + (token - tokens));
  }
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int32_t>(tokens[i]);
  return {};
}

Status TokenReader::Convert(const std::byte* bytes, int64_t first, int64_t count,
                            int32_t* out) const {
  switch (place_.type) {
    case TokenType::kUint8:
      return Convert<uint8_t>(bytes, first, count, out);
    case TokenType::kInt8:
      return Convert<int8_t>(bytes, first, count, out);
    case TokenType::kInt16:
      return Convert<int16_t>(bytes, first, count, out);
    case TokenType::kUint16:
      return Convert<uint16_t>(bytes, first, count, out);
    case TokenType::kInt32:
      return Convert<int32_t>(bytes, first, count, out);
    case TokenType::kUint32:
      return Convert<uint32_t>(bytes, first, count, out);
    case TokenType::kInt64:
      break;
  }
  return Convert<int64_t>(bytes, first, count, out);
}

}  // namespace pp
