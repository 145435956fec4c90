// What the operators of a model do, in numbers: floating-point operations, and bytes of memory that
// they read and write. Analytic, of the table alone: no machine, no clock.
//
// A multiplication and an addition are two operations. Counted are matrix products and attention,
// beside which all else is small; attention has half of its keys (causal), and its backward makes
// the scores again: 5 products to the forward's 2. Bytes are those of each input once and each
// output once, as if all caches were cold and endless; weights and gradients included.
#pragma once

#include <cstdint>

#include "schema/model/job.h"
#include "schema/model/layout.h"

namespace pp {

struct Work {
  double operations = 0;
  double bytes = 0;

  Work& operator+=(const Work& other) {
    operations += other.operations;
    bytes += other.bytes;
    return *this;
  }
};

// Of one micro-batch, of one tensor parallel peer. `again`: what RE does of the forward.
struct StageWork {
  Work forward, again, input, weight;
};

// `op` as one peer has it (PartOf).
StageWork WorkOf(const Operator& op, const Job& job);
// REQUIRES: `layout` is of the job.
StageWork WorkOf(const StageLayout& layout, const Job& job);

}  // namespace pp
