// What the devices of a plan without a model hold, in bytes as its costs have them (costs.def):
// what is alive, in the order of a list, without places for it. (With a model, plan-memory's
// arena.)
//
//   d1            alive from the start of each instruction        after its end
//   RECV_act s0   act(0)
//   FW s1         the larger of act(0) and stash(1), act(1)       stash(1), act(1)
//   SEND_act s1                                                   the same: a WAIT frees act(1)
//   BW s1         stash(1), grad(1), grad(0)                      grad(0)
//
// An instruction that keeps what it reads (ops.def) has the larger of that and the value that takes
// it over while it runs, and that value alone from its end on: a stash has in it the act that its
// forward read, and what BW_input leaves replaces the stash. Beside that, while it runs, it has the
// transient of its stage. All the time a device holds the weights of its stages, each copy, and as
// many versions as it keeps.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "schema/program.h"
#include "schema/semantics/cost_model.h"
#include "schema/semantics/placement.h"

namespace pp {

class AliveBytes {
 public:
  // Whole numbers by kind: values, kWeights, and kScratch for transients.
  using ByKind = std::array<double, kKindNumbers>;

  // REQUIRES: `program` outlives it.
  AliveBytes(const Program& program, const CostModel& costs);

  // From the first step to the last.
  int64_t Always(int device) const;
  // Where it is most: the body's instruction, -1 if it is empty; what there is then, and its sum.
  struct Most {
    int index = -1;
    ByKind bytes{};
    int64_t sum = 0;
  };
  // REQUIRES: verified with its messages, and without sections (Unrolled).
  Most MostOn(int device) const;

 private:
  double BytesOf(const Value& v) const;

  const Program& program_;
  const Placement placement_;
  std::vector<ByKind> bytes_;  // by stage
};

}  // namespace pp
