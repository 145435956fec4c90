// Elementwise kernels with dropout in them: for each element, out = base + mask * value.
#pragma once

#include <cstdint>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/philox.h"
#include "kernels/dropout.h"

namespace pp::kernels::PP_ISA {

inline constexpr int64_t kMaskedBlock = 16384;  // elements of one sequence that one thread takes

// For each `at` < range.n, out[at] = finish(dropout(value(at)), at), a vector at a time. value(at,
// n) and finish(v, at, n) get the number of lanes: kLanes, or fewer at an end.
template <typename N, typename Value, typename Finish>
void ForEachMasked(const MaskedRange& range, const DropoutKey& key, N* out, const Value& value,
                   const Finish& finish) {
  if (range.n == 0) return;
  const int64_t elements = range.sequence_elements;
  const int64_t first_row = range.first / elements;
  const int64_t rows = (range.first + range.n - 1) / elements - first_row + 1;
  const int64_t blocks = (elements + kMaskedBlock - 1) / kMaskedBlock;
  ParallelFor(rows * blocks, [&](int64_t block, int) {
    const int64_t row = first_row + block / blocks, from = block % blocks * kMaskedBlock;
    // Element i of the sequence is at start + i.
    const int64_t start = row * elements - range.first;
    const int64_t begin = start + from < 0 ? -start : from;
    int64_t end = from + kMaskedBlock < elements ? from + kMaskedBlock : elements;
    if (start + end > range.n) end = range.n - start;
    if (begin >= end) return;
    const DropoutMask mask(key.seed, key.site, key.first_sequence + static_cast<uint32_t>(row),
                           key.p);
    int64_t i = begin;
    if (const int64_t skip = begin % 4; skip > 0) {  // to the beginning of a Philox counter
      const int64_t n = end - begin < 4 - skip ? end - begin : 4 - skip;
      float lanes[kPhiloxWords] = {};
      StorePart(lanes + skip, value(start + i, n), n);
      Vec v[2] = {Load(lanes), Broadcast(0)};
      if (key.p > 0) mask.Apply(begin - skip, v);
      Store(lanes, v[0]);
      StorePart(out + start + i, finish(LoadUpTo(lanes + skip, n), start + i, n), n);
      i += n;
    }
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      Vec v[2] = {value(start + i, kLanes), value(start + i + kLanes, kLanes)};
      if (key.p > 0) mask.Apply(i, v);
      Store(out + start + i, finish(v[0], start + i, kLanes));
      Store(out + start + i + kLanes, finish(v[1], start + i + kLanes, kLanes));
    }
    if (i == end) return;
    const int64_t first = end - i < kLanes ? end - i : kLanes, second = end - i - first;
    Vec v[2] = {value(start + i, first), value(start + i + first, second)};
    if (key.p > 0) mask.Apply(i, v);
    StorePart(out + start + i, finish(v[0], start + i, first), first);
    StorePart(out + start + i + first, finish(v[1], start + i + first, second), second);
  });
}

}  // namespace pp::kernels::PP_ISA
