// Which numbers of a whole parameter a tensor parallel peer's part of it has.
#pragma once

#include <cstdint>
#include <vector>

#include "schema/model/layout.h"

namespace pp {

// Numbers side by side both in a parameter and in a peer's part of it.
struct Stretch {
  int64_t element = 0, local = 0, count = 0;
};

// All of a part, by `element`. What none covers is padding.
std::vector<Stretch> StretchesOf(const Tensor& tensor, const Peer& peer);
// Of them, what is among the local numbers [begin, begin + count).
std::vector<Stretch> Within(std::vector<Stretch> stretches, int64_t begin, int64_t count);

}  // namespace pp
