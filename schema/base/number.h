// Numbers in texts from users and files.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace pp {

// Whether the whole text is one number; `base`: of an integer, if not 10.
template <typename Number, typename... Base>
bool ReadNumber(std::string_view text, Number* number, Base... base) {
  const char* all = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), all, *number, base...);
  return error == std::errc() && end == all;
}

}  // namespace pp
