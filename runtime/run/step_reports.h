// One step of a run, from the ranks' reports of it, by rank.
#pragma once

#include <optional>
#include <vector>

#include "runtime/run/control.h"
#include "runtime/run/inputs.h"
#include "runtime/run/train.h"
#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

// Failed: what is not finite, and where; a rank that only has its consequences comes last. A
// gradient norm that is not finite is no error if the loss is scaled and its scale can be halved
// further.
Status CheckNumbers(const Program& program, const Inputs& inputs,
                    const std::vector<ControlMessage>& reports);

// The mean over the validation's tokens, if there was one after the step.
std::optional<double> ValidationLoss(const Program& program, const Inputs& inputs,
                                     const std::vector<ControlMessage>& reports);

// Failed: how many of its targets count cannot be read.
Result<StepReport> Combine(const Program& program, const Inputs& inputs,
                           const std::vector<ControlMessage>& reports);

}  // namespace pp
