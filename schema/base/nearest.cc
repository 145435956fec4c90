#include "schema/base/nearest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace pp {
namespace {

// Levenshtein's distance, whatever the case.
size_t Distance(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  std::vector<size_t> row(b.size() + 1);  // of a's beginning, to each of b's beginnings
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (lower(a[i - 1]) != lower(b[j - 1]) ? 1 : 0);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::string_view Nearest(std::string_view text, std::span<const std::string_view> names) {
  constexpr size_t kLongest = 64;  // of a slip
  std::string_view nearest;
  size_t least = std::min(text.size(), kLongest) / 3 + 1;
  for (const std::string_view name : names)
    if (const size_t distance = text.size() <= kLongest ? Distance(text, name) : least;
        distance < least)
      least = distance, nearest = name;
  return nearest;
}

std::string DidYouMean(std::string_view text, std::span<const std::string_view> names) {
  const std::string_view nearest = Nearest(text, names);
  return nearest.empty() ? "" : fmt::format("did you mean {}? ", nearest);
}

std::vector<std::string> UseNewNames(std::span<const Renamed> renamed,
                                     std::vector<std::string>* words) {
  std::vector<std::string> notes;
  const auto end = std::find(words->begin(), words->end(), "--");
  for (const auto& [before, now] : renamed) {
    bool found = false;
    for (auto word = words->begin(); word != end; ++word) {
      if (word->substr(0, word->find('=')) != before) continue;
      word->replace(0, before.size(), now);
      found = true;
    }
    if (found) notes.push_back(fmt::format("{} is now called {}", before, now));
  }
  return notes;
}

}  // namespace pp
