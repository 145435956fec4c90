// What the passes that change a schedule have in common.
#pragma once

#include <string>

#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

// On the compute lane and not a WAIT: what the passes count as neighbours.
inline bool IsCompute(const Instruction& i) {
  return Info(i.op).lane == Lane::kCompute && i.op != Op::kWait && i.op != Op::kLoad;
}

// Removes the marks where a scheme starts its reductions, and all WAITs: they do not hold for an
// order that a pass has made.
void DropMarks(Program& program);

// Mario's passes assume flushes and whole backwards. The error names `pass`.
Status CheckWholeBackwards(const Program& program, const std::string& pass);

}  // namespace pp
