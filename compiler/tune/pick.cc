#include "compiler/tune/pick.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace pp {
namespace {

// As users meet them; others follow.
constexpr std::string_view kKnown[] = {"1f1b", "interleaved", "gpipe", "zb-h1", "zb-v"};

}  // namespace

double ModelError(const TuneOptions& options) { return options.profiles.empty() ? 0.05 : 0.04; }

Complexity ComplexityOf(const Candidate& candidate) {
  const CompileOptions& c = candidate.compile;
  const bool pipeline = c.shape.devices > 1;
  const int kinds = pipeline + (c.job.tp > 1) + (c.replicas > 1);
  const bool recomputes = !c.passes.empty() || !c.fit.limit.values.empty();
  const auto known = std::find(std::begin(kKnown), std::end(kKnown), c.scheme) - kKnown;
  return {pipeline,
          kinds,
          recomputes,
          static_cast<int>(known),
          c.shape.stages_per_device,
          c.rank_order != RankOrder::kTpPpDp};
}

}  // namespace pp
