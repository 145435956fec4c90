// Which plan is picked. No prediction is exact: of the plans that take as long as the fastest, but
// for the model's error, the simplest is the better answer.
#pragma once

#include <tuple>

#include "compiler/tune/tune.h"

namespace pp {

// Of two plans whose times differ by less than this share the model does not say which one is
// faster. By a machine's description: of published runs, 95 % of the pairs that differ by more are
// predicted in the right order (compiler/MEASURED.md). By a profile: what plans that were not
// measured take more or less than predicted, on average (tools/bench //tools:bench_predict).
double ModelError(const TuneOptions& options);

// How simple a plan is, the least first: one without a pipeline; with fewer kinds of parallelism;
// that recomputes nothing; of a scheme that many know; whose stages have as many layers each; with
// fewer stages on a device; in the usual order of ranks.
using Complexity = std::tuple<bool, int, bool, int, bool, int, bool>;
Complexity ComplexityOf(const Candidate& candidate);

}  // namespace pp
