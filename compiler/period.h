// The time from step to step where no step waits for a common end: bodies are executed one after
// the other until each repeats the one before.
//
//   d0 | F0 F1 F2 I0 W0 I1 W1 I2 W2 | F0 F1 ..          makespan: from the first instruction of a
//   d1 |    F0 I0 F1 I1 F2 I2 W0 W1 W2 | F0 I0 ..       body to the last; period: from body to body
#pragma once

#include "compiler/transport.h"
#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"

namespace pp {

// REQUIRES: Verify(program).ok(); !program.overlaps.
Result<double> SteadyPeriod(const Program& program, const CostModel& costs, const OnTransport& on);

}  // namespace pp
