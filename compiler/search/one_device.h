// The least makespan of one device alone: the other devices are only a time that passes between a
// forward and its backward, and the limit of memory holds here.
//
// No plan of the whole pipeline can beat it, in whatever order it takes its micro-batches: cells of
// one kind (the same group, kept or recomputed) are alike, so that their tasks may be renamed until
// the first forward belongs to the first recompute and to the first backward, which changes neither
// a time nor what is held.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/search/problem.h"

namespace pp::search {

// The cells of one device that share a stage, a pipe and whether their backwards are split.
struct Group {
  int64_t count = 0;
  double f, r, b, w;
  double head, tail;  // what must run before the forward, after the backward
  double residence;   // from the forward's start to the backward's end at least
  Held held;
  bool split;
};

// A lower bound of that makespan from the start of the step to its end. It is the makespan itself
// unless the search takes more than `work`, numbers copied and compared; then what was proved by
// then.
double OneDevice(const std::vector<Group>& groups, int64_t limit, int64_t work);

}  // namespace pp::search
