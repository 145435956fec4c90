// Words that a user may have meant: slips, and former names of options.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pp {

// The one of the names that `text` is nearest to, whatever the case, if so near that it may be a
// slip: at most one letter in three inserted, left out or replaced. Empty: none is.
std::string_view Nearest(std::string_view text, std::span<const std::string_view> names);
// "did you mean NAME? ", or nothing: the beginning of what would be right.
std::string DidYouMean(std::string_view text, std::span<const std::string_view> names);

struct Renamed {
  std::string_view before, now;
};
// Gives options on a command line, --NAME or --NAME=VALUE, their present names; what follows a --
// is no option. What to tell the user: a line for each option that was renamed.
std::vector<std::string> UseNewNames(std::span<const Renamed> renamed,
                                     std::vector<std::string>* words);

}  // namespace pp
