// Which elements of a whole parameter a tensor-parallel peer's part contains.
#pragma once

#include <cstdint>
#include <vector>

#include "schema/model/layout.h"

namespace pp {

// Elements that are adjacent both in a parameter and in a peer's part of it.
struct Stretch {
  int64_t element = 0, local = 0, count = 0;
};

// All of a part, by `element`. What no stretch covers is padding.
std::vector<Stretch> StretchesOf(const Tensor& tensor, const Peer& peer);
// The parts of them among the local elements [begin, begin + count).
std::vector<Stretch> Within(std::vector<Stretch> stretches, int64_t begin, int64_t count);

}  // namespace pp
