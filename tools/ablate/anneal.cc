// No local search (//tools:bench_fit_without_anneal).
#include "compiler/search/anneal.h"

namespace pp::search {

void Anneal(Workbench&, const Plan&, int64_t, const Cycle&) {}

}  // namespace pp::search
