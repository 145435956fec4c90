#include "compiler/tune/pick.h"

#include <algorithm>
#include <iterator>

#include "compiler/tune/space.h"

namespace pp {
double ModelError(const TuneOptions& options) { return options.profiles.empty() ? 0.05 : 0.04; }

Complexity ComplexityOf(const Candidate& candidate) {
  const CompileOptions& c = candidate.compile;
  const bool pipeline = c.shape.devices > 1;
  const int kinds = pipeline + (c.job.tp > 1) + (c.replicas > 1);
  const bool recomputes = !c.passes.empty() || !c.fit.limit.values.empty();
  const auto known =
      std::find(std::begin(kUsualSchemes), std::end(kUsualSchemes), c.scheme) - kUsualSchemes;
  return {pipeline,
          kinds,
          recomputes,
          static_cast<int>(known),
          c.job.model.layers % (c.shape.devices * std::max(1, c.shape.stages_per_device)) != 0,
          c.shape.stages_per_device,
          c.rank_order != RankOrder::kTpPpDp};
}

}  // namespace pp
