// Stages of equal sizes, of which a large model has many.
#pragma once

#include "schema/program.h"

namespace pp {

// Whether all sizes of a stage are those of the stage before it: both have as many layers, and
// neither is the first or the last.
inline bool IsLikeBefore(const Program& program, int stage) {
  if (!program.job || stage < 2 || stage + 1 >= program.stages) return false;
  const auto& layers = program.job->layers_per_stage;
  return layers[stage] == layers[stage - 1];
}

}  // namespace pp
