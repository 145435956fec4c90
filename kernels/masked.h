// Elementwise kernels with dropout in them: for each element, out = base + mask * value.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"
#include "kernels/parallel.h"
#include "kernels/philox.h"

namespace pp::kernels::PP_ISA {

inline constexpr int64_t kMaskedBlock = 16384;  // elements of one sequence that one thread takes

// For each element `at` of [batch, elements], out[at] = finish(dropout(value(at)), at), a vector at
// a time. value(at, n) and finish(v, at, n) get how many lanes there are: kLanes, or fewer at the
// end of a sequence.
template <typename Value, typename Finish>
void ForEachMasked(int64_t batch, int64_t elements, const DropoutKey& key, float* out,
                   const Value& value, const Finish& finish) {
  const int64_t blocks = (elements + kMaskedBlock - 1) / kMaskedBlock;
  ParallelFor(batch * blocks, [&](int64_t block, int) {
    const int64_t row = block / blocks, begin = block % blocks * kMaskedBlock;
    const int64_t end = begin + kMaskedBlock < elements ? begin + kMaskedBlock : elements;
    const int64_t start = row * elements;
    const DropoutMask mask(key.seed, key.site, key.first_sequence + static_cast<uint32_t>(row),
                           key.p);
    int64_t i = begin;
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
