#include "schema/base/status.h"

#include <algorithm>
#include <cstdint>

namespace pp {
namespace {

constexpr size_t kMostMessage = 2000;  // ours have less than half of that

// Bytes of the UTF-8 character at the beginning; 0 if there is none, or one that cannot be seen: a
// control character, or one that changes how its neighbours are shown.
size_t Visible(std::string_view text) {
  const auto byte = [&](size_t i) -> uint32_t {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const uint32_t first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first < 0xc0 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length == 0 || first > 0xf4) return 0;
  uint32_t point = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = point << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0xa0, 0x800, 0x10000};  // below: longer than necessary
  const auto in = [&](uint32_t low, uint32_t high) { return point >= low && point <= high; };
  const bool visible = point >= kLeast[length] && point <= 0x10ffff && !in(0xd800, 0xdfff) &&
                       !in(0x200b, 0x200f) && !in(0x2028, 0x202e) && !in(0x2060, 0x206f) &&
                       point != 0xfeff;
  return visible ? length : 0;
}

// The text with everything else written out, cut to `most` characters.
std::string Cut(std::string_view text, size_t most) {
  constexpr char kDigits[] = "0123456789abcdef";
  constexpr std::string_view kDots = "...";
  std::string shown;
  size_t count = 0, end = 0;  // characters; bytes of those before which the dots would fit
  while (!text.empty()) {
    const size_t length = Visible(text);
    const auto byte = static_cast<unsigned char>(text[0]);
    std::string one(text.substr(0, length));
    if (length == 0 && byte == '\n') one = "\\n";
    if (one.empty()) one = {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    count += length > 0 ? 1 : one.size();
    if (count > most) return shown.substr(0, end).append(kDots);
    shown += one;
    if (count + kDots.size() <= most) end = shown.size();
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return shown;
}

}  // namespace

std::string Shown(std::string_view text) { return Cut(text, kMostShown); }

std::string OneLine(std::string_view text) {
  std::string line;
  for (size_t begin = 0; begin <= text.size() && line.size() <= 8 * kMostMessage;) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (begin > 0) line += ' ';
    line += Shown(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return Cut(line, kMostMessage);
}

}  // namespace pp
