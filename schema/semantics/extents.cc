#include "schema/semantics/extents.h"

namespace pp {

Extents::Extents(const Program& program) {
  for (int shape = 0; shape < program.shapes(); ++shape)
    jobs_.push_back(program.job->OfShape(shape));
}

const StageLayout& Extents::Of(int stage, int shape) const {
  const Job& job = jobs_[shape];
  const auto [found, is_new] = layouts_.try_emplace(
      {stage == 0, stage + 1 == job.stages(), job.layers_per_stage[stage], shape});
  if (is_new) found->second = LayoutStage(job, stage);
  return found->second;
}

}  // namespace pp
