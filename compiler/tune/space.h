// The space of tune: sizes, and what is decided by a rule instead of being tried.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/machine/costs.h"
#include "compiler/scheme.h"
#include "compiler/tune/tune.h"
#include "schema/base/status.h"

namespace pp {

// The first stage may have the embedding alone, the last one the loss.
inline int MostStages(const ModelConfig& model) { return model.layers + 2; }

// All divisors; or the given one, if it is one.
std::vector<int> Divisors(int of, int given);
// Tensor parallelism that the model and a node allow.
std::vector<int> LegalPeers(const TuneOptions& options, int given);
// That what is given leaves something to try. Errors name the option, and what would be right.
Status CheckLayouts(const TuneOptions& options);

// Schemes that many know, the best known first.
inline constexpr std::string_view kUsualSchemes[] = {"1f1b", "interleaved", "gpipe", "zb-h1",
                                                     "zb-v"};

// The numbers of stages on a device that a scheme is tried with; 0: its own. Of a free one all with
// which stages have as many layers each, where the embedding, the loss, both or neither count as
// one (which the balance of work may then place otherwise).
std::vector<int> StagesToTry(const TuneOptions& options, const Scheme& scheme, int devices);

// What is kept, the most first: all that a job can keep, each alone, nothing; or what is given.
std::vector<std::vector<OperatorKind>> KeepsToTry(const TuneOptions& options, const Job& job);

// With tensor parallelism: both, unless no time and no bytes of any stage are larger with sequence
// parallelism, whatever is kept; then no plan is slower or larger with it. (Costs of stages enter
// every bound and every time as sums along paths, where more is never less.)
std::vector<bool> SequenceParallelToTry(const TuneOptions& options, const Job& job);

// ZeRO and orders of ranks that differ in costs. Where a stage has one copy there is nothing to
// spread; where all ranks are on one node, or pipelines or replicas are one, both orders are alike.
struct Variant {
  int zero = 0;
  RankOrder rank_order = RankOrder::kTpPpDp;
};
std::vector<Variant> VariantsToTry(const TuneOptions& options, const Program& program);

}  // namespace pp
