// What the instructions of a program take on a machine: --machine.
//
// An operator takes as long as its operations at the rate that the machine reaches, or as its bytes
// at the memory's, whichever is longer, and its launch; a forward that a backward runs again, for a
// weight half, once more. Tensor-parallel peers add what they exchange in a stage's forward and
// input gradients; a message, a reduction and an optimizer's step take their bytes at the bandwidth
// of what they cross (network.h).
#pragma once

#include <map>
#include <optional>
#include <tuple>

#include "compiler/machine/machine.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"

namespace pp {

// Sizes of the stages of one model, and what their operators take on one machine, whatever its
// links. Stages that are alike have one: a layout is of the first of them. It has no tensors, and
// no operators once they have a time: a large model has thousands of them.
class Layouts {
 public:
  struct Times {
    double forward = 0, recompute = 0, input = 0, weight = 0;
  };
  struct Stage {
    StageLayout layout;
    std::optional<Times> alone;     // what a device takes
    std::map<int64_t, Times> sums;  // over the tensor-parallel peers: how many, of each width
  };
  // REQUIRES: of all jobs, only tp, micro-batches, sequence parallelism, what is kept and the split
  // differ.
  Stage& Of(const Job& job, int stage);

 private:
  std::map<std::tuple<int, int, int, bool, uint32_t, bool, bool, int>, Stage> known_;
};

// In seconds. `program`: pipes, replicas and job; its lists do not matter. REQUIRES: it has a job,
// whose micro-batches are all alike; of all machines that `layouts` are asked for, only the links
// differ. Error: the machine does not compute in the job's dtype.
Result<CostModel> CostsOn(const Machine& machine, const Program& program, Layouts* layouts);
Result<CostModel> CostsOn(const Machine& machine, const Program& program);

}  // namespace pp
