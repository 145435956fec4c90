// The parts of a text between separators: "a,,b" has "a", "" and "b", the empty text has one empty
// part.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace pp {

inline std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace pp
