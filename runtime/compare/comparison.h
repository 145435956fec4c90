// Whether a run has computed what one device computes, but for rounding: the same steps are run
// there twice, the second time with weights and updates that are a little other. How far those two
// come apart, value by value, is what rounding explains: it grows with the depth of the model and
// from step to step as the errors of rounding do, and is large where they are. The first step is
// the one that tells most: from the second on, AdamW has made large differences of small ones.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/run/train.h"
#include "schema/program.h"
#include "schema/status.h"

namespace pp {

// How many times what rounding explains a difference may be. Of plans that compute the same the
// grid test finds up to 8, and chance may make it more: both are estimates, each from eight sums.
// With bfloat16 rounding explains about a hundredth of a value: an error of less than a third may
// pass, where one of a ten thousandth is found in fp32.
inline constexpr double kCompareLimit = 32;

struct Comparison {
  int64_t steps = 0, values = 0;  // that were compared
  double worst = 0;               // difference, in units of what rounding explains
  std::string worst_name;         // of that value; empty: there is no difference at all
};

// REQUIRES: the report of a run with TrainOptions::compare. Failed: the first value that differs by
// more than rounding explains, of the first step that has one. Of a run that has failed what was
// recorded is compared.
Status Compare(const Program& program, const TrainOptions& options, const TrainReport& report,
               Comparison* result);

// "compared with one device: 300 values of 3 steps have the same bits" and a newline.
std::string ToText(const Comparison& comparison);

}  // namespace pp
