// How many micro-batches the steps of a replica have, where that changes as the training goes on
// (McCandlish et al., 2018, "An Empirical Model of Large-Batch Training": gradients are less noisy
// at its beginning).
//
//   16@0,32@1000     steps 1 to 1000 have 16, those after them 32
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"

namespace pp {

struct BatchRamp {
  struct Stretch {
    int32_t microbatches = 0;
    int64_t from = 0;  // steps of the training before it
    bool operator==(const Stretch&) const = default;
  };
  std::vector<Stretch> stretches;  // ascending, the first one from 0; none: all steps are alike
  bool operator==(const BatchRamp&) const = default;

  bool given() const { return !stretches.empty(); }
  // Of the largest steps. REQUIRES: given().
  int32_t Most() const;
};

// "16@0,32@1000"; empty: none. Errors say what is right.
Status ReadBatchRamp(std::string_view text, BatchRamp* ramp);
std::string TextOf(const BatchRamp& ramp);

}  // namespace pp
