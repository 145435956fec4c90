// Whether a run has computed what one device computes, up to rounding: the same steps are run there
// twice, the second time with slightly different weights and updates. How far those two diverge,
// value by value, is what rounding explains: it grows with the depth of the model and from step to
// step as rounding errors do, and is large where they are. The first step tells most: from the
// second on, AdamW has turned small differences into large ones.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/run/train.h"
#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

// How many times what rounding explains a difference may be. For plans that compute the same the
// grid test finds up to 8, and chance may make it more: both are estimates, each from eight sums.
// With bfloat16 rounding explains about a hundredth of a value: an error of less than a third may
// pass, while in fp32 one of a ten-thousandth is found.
inline constexpr double kCompareLimit = 32;

struct Comparison {
  int64_t steps = 0, values = 0;  // compared
  double worst = 0;               // difference, in units of what rounding explains
  std::string worst_name;         // of that value; empty: no difference at all
};

// REQUIRES: the report of a run with TrainOptions::compare. Failed: the first value, in the first
// such step, that differs by more than rounding explains. If the run has failed, what was recorded
// is compared.
Status Compare(const Program& program, const TrainOptions& options, const TrainReport& report,
               Comparison* result);

// "compared with one device: 300 values of 3 steps have the same bits" and a newline.
std::string ToText(const Comparison& comparison);

}  // namespace pp
