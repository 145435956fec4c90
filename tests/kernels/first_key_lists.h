// Lists of first keys, for attention's cases: windows, documents in a row, and any others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention.h"

namespace pp::kernels {

struct FirstKeyList {
  std::string name;
  std::vector<int32_t> at;
  int64_t stride = 0;

  // Null if there are none.
  FirstKeys keys() const { return {at.empty() ? nullptr : at.data(), stride}; }
  int64_t Of(int64_t sequence, int64_t query) const {
    return at.empty() ? 0 : at[sequence * stride + query];
  }
};

inline FirstKeyList WindowOf(int64_t tokens, int64_t most) {
  FirstKeyList list = {"a window of " + std::to_string(most), {}};
  for (int64_t t = 0; t < tokens; ++t)
    list.at.push_back(static_cast<int32_t>(std::max<int64_t>(0, t - most + 1)));
  return list;
}

// Documents that begin at these tokens, the first one at 0, in all sequences.
inline FirstKeyList DocumentsAt(int64_t tokens, const std::vector<int32_t>& begins) {
  FirstKeyList list = {"documents", {}};
  for (int64_t t = 0; t < tokens; ++t)
    list.at.push_back(*std::prev(std::upper_bound(begins.begin(), begins.end(), t)));
  return list;
}

// Another list for each sequence: with `documents` queries see all of theirs, without them the
// first key grows now and then, by a little or up to the query.
inline FirstKeyList RandomList(const AttentionShape& s, bool documents) {
  FirstKeyList list = {documents ? "random documents" : "a random list", {}, s.tokens};
  std::mt19937 random(7);
  for (int64_t b = 0; b < s.batch; ++b) {
    int32_t first = 0;
    for (int32_t t = 0; t < s.tokens; ++t) {
      const uint32_t draw = random();
      if (documents) {
        if (draw % 40 == 0) first = t;
      } else if (draw % 4 == 0) {
        first = draw % 256 == 0 ? t : std::min<int32_t>(t, first + draw / 256 % 12);
      }
      list.at.push_back(first);
    }
  }
  return list;
}

// One of each sort: windows about the size of tiles, and longer than a sequence.
inline std::vector<FirstKeyList> FirstKeyLists(const AttentionShape& s) {
  std::vector<FirstKeyList> lists;
  for (const int64_t most : {1, 2, 17, 63, 64, 65, 127}) lists.push_back(WindowOf(s.tokens, most));
  lists.push_back(WindowOf(s.tokens, s.tokens + 1));
  lists.push_back(RandomList(s, true));
  lists.push_back(RandomList(s, false));
  return lists;
}

}  // namespace pp::kernels
