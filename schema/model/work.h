// How much work the operators of a model do: floating-point operations, and bytes of memory that
// they read and write. Analytic, from the table alone: no machine, no clock.
//
// A multiplication and an addition are two operations. Matrix products and attention are counted;
// all else is small compared with them. Attention sees half of its keys (causal), of a sequence or
// of a document in it (Job::document_length), and its backward recomputes the scores: 5 products to
// the forward's 2. Bytes count each input once and each output once, as if all caches were cold and
// infinite; weights and gradients included.
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

// Of one micro-batch, for one tensor-parallel peer. `recompute`: the part of the forward that RE
// repeats. `weight`: of a stage, with the part of the forward that is repeated for it.
struct StageWork {
  Work forward, recompute, input, weight;
};

// `op` as one peer has it (PartOf).
StageWork WorkOf(const Operator& op, const Job& job);
// REQUIRES: `layout` is of the job.
StageWork WorkOf(const StageLayout& layout, const Job& job);

}  // namespace pp
