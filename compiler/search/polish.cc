#include "compiler/search/polish.h"

#include <algorithm>
#include <numeric>

#include "compiler/search/ledger.h"

namespace pp::search {
namespace {

constexpr double kTiny = 1e-9;

// Where the tasks of each dropped cell stand in a list.
struct Window {
  int cell, forward, recompute, backward = -1, weight = -1;
};

std::vector<Window> DroppedCells(const Plan& plan, const std::vector<Task>& list,
                                 std::vector<int>& index) {
  std::vector<Window> windows;
  for (int i = 0; i < static_cast<int>(list.size()); ++i) {
    const int cell = CellOf(list[i]);
    if (!plan.dropped[cell]) continue;
    switch (PartOf(list[i])) {
      case Part::kForward:
        index[cell] = static_cast<int>(windows.size());
        windows.push_back({cell, i, -1});
        break;
      case Part::kRecompute:
        windows[index[cell]].recompute = i;
        break;
      case Part::kBackward:
        windows[index[cell]].backward = i;
        break;
      case Part::kWeight:
        windows[index[cell]].weight = i;
        break;
    }
  }
  return windows;
}

class Polisher {
 public:
  Polisher(const Problem& problem, Clock& clock, Plan& plan)
      : problem_(problem), clock_(clock), plan_(plan), index_(problem.cells()) {}

  // Each returns how many tasks it removed or moved.
  int Keep(int device, KeepOrder order);
  int Prepose(int device);
  int Postpone(int device);

 private:
  const Problem& problem_;
  Clock& clock_;
  Plan& plan_;
  std::vector<int> index_;
};

int Polisher::Keep(int device, KeepOrder order) {
  auto& list = plan_.lists[device];
  std::vector<Window> windows = DroppedCells(plan_, list, index_);
  if (windows.empty()) return 0;
  if (order == KeepOrder::kBackwards) std::reverse(windows.begin(), windows.end());
  if (order == KeepOrder::kShortestFirst)
    std::stable_sort(windows.begin(), windows.end(), [](const Window& a, const Window& b) {
      return a.recompute - a.forward < b.recompute - b.forward;
    });
  std::vector<int64_t> use;
  const Ledger ledger(problem_, plan_, device);
  for (int i = 0; i < ledger.size(); ++i) use.push_back(ledger.use(i));
  int kept = 0;
  for (const Window& w : windows) {
    const Held& held = problem_.HeldBy(w.cell);
    const int64_t more = held.forward - held.dropped;
    const auto begin = use.begin();
    const int64_t peak = *std::max_element(begin + w.forward, begin + w.recompute);
    if (peak + more > ledger.limit()) continue;
    for (int i = w.forward; i < w.recompute; ++i) use[i] += more;
    for (int i = w.recompute; i <= w.backward; ++i) use[i] += held.forward - held.recomputed;
    for (int i = w.backward + 1; i <= w.weight; ++i)
      use[i] += held.input_half - held.recomputed_half;
    plan_.dropped[w.cell] = 0;
    ++kept;
  }
  if (kept > 0)
    std::erase_if(list, [&](Task task) {
      return PartOf(task) == Part::kRecompute && !plan_.dropped[CellOf(task)];
    });
  return kept;
}

int Polisher::Prepose(int device) {
  Ledger ledger(problem_, plan_, device);
  std::vector<double> start(ledger.size()), end(ledger.size());
  for (int i = 0; i < ledger.size(); ++i) {
    start[i] = clock_.start(ledger.task(i));
    end[i] = clock_.end(ledger.task(i));
  }
  int moved = 0;
  for (int i = 1; i < ledger.size(); ++i) {
    const Task task = ledger.task(i), source = problem_.source[task];
    const double time = problem_.time[task];
    const double ready = source < 0 ? 0 : clock_.end(source) + problem_.lag[task];
    int best = i;
    for (int k = i - 1; k >= 0 && start[k] - ready >= time - kTiny; --k) {
      if (!ledger.FitsBefore(i, k)) break;
      const double begin = std::max(ready, k > 0 ? end[k - 1] : 0);
      if (start[k] - begin >= time - kTiny) best = k;
    }
    if (best == i) continue;
    const double begin = std::max(ready, best > 0 ? end[best - 1] : 0);
    ledger.Move(i, best);
    std::rotate(start.begin() + best, start.begin() + i, start.begin() + i + 1);
    std::rotate(end.begin() + best, end.begin() + i, end.begin() + i + 1);
    start[best] = begin;
    end[best] = begin + time;
    ++moved;
  }
  return moved;
}

int Polisher::Postpone(int device) {
  Ledger ledger(problem_, plan_, device);
  const int size = ledger.size();
  std::vector<double> start(size), end(size);
  for (int i = 0; i < size; ++i) {
    start[i] = clock_.latest_start(ledger.task(i));
    end[i] = start[i] + problem_.time[ledger.task(i)];
  }
  int moved = 0;
  for (int i = size - 2; i >= 0; --i) {
    const Task task = ledger.task(i), sink = problem_.sink[task];
    if (PartOf(task) != Part::kForward && PartOf(task) != Part::kRecompute) continue;
    const double time = problem_.time[task];
    const double due =
        sink < 0 ? clock_.makespan() : clock_.latest_start(sink) - problem_.lag[sink];
    int best = i;
    for (int k = i + 1; k < size && due - end[k] >= time - kTiny; ++k) {
      if (!MaySwap(problem_, ledger.task(k), task)) break;
      const double until = std::min(due, k + 1 < size ? start[k + 1] : clock_.makespan());
      if (until - end[k] >= time - kTiny) best = k;
    }
    if (best == i) continue;
    const double until = std::min(due, best + 1 < size ? start[best + 1] : clock_.makespan());
    ledger.Move(i, best);
    std::rotate(start.begin() + i, start.begin() + i + 1, start.begin() + best + 1);
    std::rotate(end.begin() + i, end.begin() + i + 1, end.begin() + best + 1);
    start[best] = until - time;
    end[best] = until;
    ++moved;
  }
  return moved;
}

}  // namespace

double Polish(const Problem& problem, const PolishOptions& options, Clock& clock, Plan& plan) {
  Polisher polisher(problem, clock, plan);
  double makespan = clock.Earliest(plan);
  int changes = 1;
  for (int round = 0; round < options.rounds && changes > 0; ++round) {
    changes = 0;
    if (round > 0 || options.first == PolishOptions::kKeep) {
      for (int d = 0; d < problem.devices; ++d) changes += polisher.Keep(d, options.keep);
      makespan = clock.Earliest(plan);
    }
    for (int d = 0; d < problem.devices; ++d) {
      const int moved = polisher.Prepose(d);
      changes += moved;
      if (moved > 0) makespan = clock.Earliest(plan);
    }
    clock.Latest(plan);
    for (int d = 0; d < problem.devices; ++d) polisher.Postpone(d);
    makespan = clock.Earliest(plan);
  }
  return makespan;
}

}  // namespace pp::search
