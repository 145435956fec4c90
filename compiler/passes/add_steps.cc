// add-steps: routines (schema/routines.h) for the steps of a batch ramp that have fewer
// micro-batches than the bodies. Each was compiled as a plan of its own, by the same scheme and
// passes.
//
//   device 0 holds s0           device 0 holds s0
//     LOAD      s0 m0             ..
//     FW        s0 m0           step-1
//     FW        s0 m1      =>     LOAD      s0 m0
//     ..                          FW        s0 m0
//                                 ..
#include <utility>
#include <vector>

#include "compiler/pass.h"
#include "schema/routines.h"

namespace pp {

Status AddSteps(Program& program, const PassContext& context) {
  for (const Program& step : context.steps) {
    std::vector<std::vector<Instruction>> lists;
    for (const DeviceList& list : step.lists) lists.push_back(list.body);
    AddRoutine({StepRoutine(step.microbatches), step.microbatches, step.pipe_of}, std::move(lists),
               &program);
  }
  return {};
}

}  // namespace pp
