// What each method of the search gains: how far fit-memory is behind the makespans of
// tests/fit_tables.h with one method left out at a time, beside the whole search; of large
// pipelines behind their bounds. To be run where tests/reference is found.
//
//   ablate_search            all optima, a tenth of the peers' schedules, for a step and from step
//                            to step, and the large pipelines
//   ablate_search --every N  every Nth of the first two
//   ablate_search --large    the large pipelines alone
//
// A method that no row misses is a method too many: what gains less than 0.05 % on average should
// go. Lengthened and shortened: rows whose plan is more than 0.01 % slower or faster without it.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/compile.h"
#include "schema/base/number.h"
#include "tests/fit_tables.h"

namespace pp {
namespace {

constexpr const char* kNames[] = {
    "nothing",
    "related: other schemes' orders",
    "start with all recomputed",
    "start with weight halves placed anew",
    "few micro-batches repeated",
    "lower limits of the grid",
    "local search on rules",
    "local search on the best plan's rules",
    "local search from slower plans",
    "local search on plans",
    "moves of critical tasks",
    "moves on several stages",
    "drops and keeps",
};
static_assert(std::size(kNames) == static_cast<size_t>(search::Method::kPolicy));

std::string NameOf(int method) {
  const int policy = method - static_cast<int>(search::Method::kPolicy);
  return policy < 0 ? kNames[method] : fmt::format("policy {}", policy + 1);
}

struct Goal {
  FitRow row;
  Objective objective;
};

// How much slower each is than its table says, or than its bound.
Result<std::vector<double>> Gaps(const std::vector<Goal>& goals, search::Method without) {
  std::vector<double> gaps;
  for (const Goal& goal : goals) {
    const bool period = goal.objective == Objective::kPeriod;
    const auto report = Fit(goal.row, goal.objective, without);
    if (!report.ok()) return report.status();
    const double known = period ? goal.row.span : goal.row.makespan;
    gaps.push_back(report->makespan / (known > 0 ? known : *report->lower_bound) - 1);
  }
  return gaps;
}

struct Every {
  int optimum = 1, peer = 10;
  bool large = false;  // these alone
};
Result<std::vector<Goal>> ReadGoals(Every every) {
  std::vector<Goal> goals;
  for (const FitRow& row : LargePipelines()) goals.push_back({row, Objective::kStep});
  if (every.large) return goals;
  const auto optima = ReadOptima(), peers = ReadPeers();
  if (!optima.ok()) return optima.status();
  if (!peers.ok()) return peers.status();
  for (size_t i = 0; i < optima->size(); i += static_cast<size_t>(every.optimum))
    goals.push_back({(*optima)[i], Objective::kStep});
  for (size_t i = 0; i < peers->size(); i += static_cast<size_t>(every.peer))
    for (const Objective objective : {Objective::kStep, Objective::kPeriod})
      goals.push_back({(*peers)[i], objective});
  return goals;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

Status Ablate(Every every) {
  const auto goals = ReadGoals(every);
  if (!goals.ok()) return goals.status();
  fmt::print("{} rows\n{:<38} {:>9} {:>9} {:>9} {:>10} {:>9} {:>8}\n", goals->size(), "without",
             "mean", "gains", "worst", "lengthened", "shortened", "seconds");
  std::vector<double> whole;
  for (int method = 0; method < search::kMethodCount; ++method) {
    const auto begin = std::chrono::steady_clock::now();
    const auto gaps = Gaps(*goals, static_cast<search::Method>(method));
    if (!gaps.ok()) return gaps.status();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (method == 0) whole = *gaps;
    constexpr double kOther = 1e-4;
    int longer = 0, shorter = 0;
    for (size_t i = 0; i < whole.size(); ++i) {
      longer += (*gaps)[i] > whole[i] + kOther;
      shorter += (*gaps)[i] < whole[i] - kOther;
    }
    fmt::print("{:<38} {:>+7.3f} % {:>+7.3f} % {:>+7.2f} % {:>10} {:>9} {:>8.0f}\n", NameOf(method),
               Mean(*gaps) * 100, (Mean(*gaps) - Mean(whole)) * 100,
               *std::max_element(gaps->begin(), gaps->end()) * 100, longer, shorter, taken.count());
    std::fflush(stdout);
  }
  return {};
}

}  // namespace
}  // namespace pp

int main(int argc, char** argv) {
  pp::Every every;
  every.large = argc == 2 && std::string_view(argv[1]) == "--large";
  if (argc != 1 && !every.large &&
      (argc != 3 || std::string_view(argv[1]) != "--every" ||
       !pp::ReadNumber(argv[2], &every.peer) || every.peer < 1)) {
    fmt::print(stderr, "usage: ablate_search [--every N | --large]\n");
    return 2;
  }
  if (argc == 3) every.optimum = every.peer;
  const pp::Status status = pp::Ablate(every);
  if (status.ok()) return 0;
  fmt::print(stderr, "ablate_search: error: {}\n", status.message());
  return static_cast<int>(status.code());
}
