// Weight halves stay where a start has them (//tools:bench_fit_without_weights).
#include "compiler/search/weights.h"

namespace pp::search {

std::optional<Plan> PlaceWeights(const Problem&, const Plan&) { return std::nullopt; }

}  // namespace pp::search
