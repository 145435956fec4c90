#include "compiler/tune/auto.h"

#include <algorithm>
#include <optional>

#include "compiler/simulate.h"
#include "schema/proof/verify.h"
#include "schema/sections.h"

namespace pp {

Result<Chosen> CompileFastest(const CompileOptions& options, const PassObserver& observer) {
  Chosen chosen;
  std::optional<Status> first;  // what is wrong with the first one
  double fastest = 0;
  for (const Scheme& scheme : Schemes()) {
    CompileOptions compile = options;
    compile.scheme = scheme.name;
    auto program = Compile(compile, observer);
    if (program.ok() && (program->overlaps || program->MakesVersions())) continue;
    std::vector<WaitsFor> waits_for;
    const auto costs = program.ok() ? CostsOf(*program) : Result<CostModel>(program.status());
    const Status status = costs.ok() ? Verify(*program, Depth::kPlan, &waits_for) : costs.status();
    const auto prediction =
        status.ok() ? Simulate(*program, waits_for, *costs) : Result<Prediction>(status);
    if (!prediction.ok()) {
      if (!first) first = prediction.status();
      continue;
    }
    chosen.compared.push_back({std::string(scheme.name), prediction->makespan, prediction->unit});
    if (chosen.compared.size() > 1 && prediction->makespan >= fastest) continue;
    fastest = prediction->makespan;
    chosen.program = std::move(*program);
  }
  if (chosen.compared.empty()) return *first;
  std::stable_sort(chosen.compared.begin(), chosen.compared.end(),
                   [](const auto& a, const auto& b) { return a.makespan < b.makespan; });
  return chosen;
}

}  // namespace pp
