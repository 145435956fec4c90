// A word that a user may have meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace pp {

// The one of the names that `text` is nearest to, whatever the case, if so near that it may be a
// slip: at most one letter in three inserted, left out or replaced. Empty: none is.
std::string_view Nearest(std::string_view text, std::span<const std::string_view> names);
// "did you mean NAME? ", or nothing: the beginning of what would be right.
std::string DidYouMean(std::string_view text, std::span<const std::string_view> names);

}  // namespace pp
