#include "compiler/search/polish.h"

#include <algorithm>
#include <future>
#include <utility>

#include "compiler/search/ledger.h"
#include "schema/base/background.h"

namespace pp::search {
namespace {

// The positions of each dropped cell's tasks in a list.
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

// `index`: workspace, of a place for each cell.
class Polisher {
 public:
  Polisher(const Problem& problem, const Clock& clock, Plan& plan, std::vector<int>& index)
      : problem_(problem), clock_(clock), plan_(plan), ledger_(problem, plan), index_(index) {}

  // Each returns how many tasks it removed or moved, and looks at no other device's list.
  int Keep(int device);
  int Prepose(int device);
  int Postpone(int device);

 private:
  const Problem& problem_;
  const Clock& clock_;
  Plan& plan_;
  Ledger ledger_;
  // Workspace.
  std::vector<int>& index_;
  std::vector<int64_t> use_;
  std::vector<double> start_, end_;
  // By place: when its task starts in the clock's timeline, or, if it has been moved, the one that
  // it was put before or behind. What it takes or gives must then be earlier or later than that:
  // where tasks take no time, equal starts do not say which of them waits for the other.
  std::vector<double> turn_;
};

int Polisher::Keep(int device) {
  auto& list = plan_.lists[device];
  const std::vector<Window> windows = DroppedCells(plan_, list, index_);
  if (windows.empty()) return 0;
  ledger_.Open(device);
  use_.clear();
  for (int i = 0; i < ledger_.size(); ++i) use_.push_back(ledger_.use(i));
  int kept = 0;
  for (const Window& w : windows) {
    const Held& held = problem_.HeldBy(w.cell);
    const int64_t more = held.forward - held.dropped;
    const auto begin = use_.begin();
    const int64_t peak = *std::max_element(begin + w.forward, begin + w.recompute);
    if (peak + more > ledger_.limit()) continue;
    for (int i = w.forward; i < w.recompute; ++i) use_[i] += more;
    for (int i = w.recompute; i <= w.backward; ++i) use_[i] += held.forward - held.recomputed;
    for (int i = w.backward + 1; i <= w.weight; ++i)
      use_[i] += held.input_half - held.recomputed_half;
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
  ledger_.Open(device);
  start_.resize(ledger_.size());
  end_.resize(ledger_.size());
  for (int i = 0; i < ledger_.size(); ++i) {
    start_[i] = clock_.start(ledger_.task(i));
    end_[i] = clock_.end(ledger_.task(i));
  }
  turn_ = start_;
  int moved = 0;
  for (int i = 1; i < ledger_.size(); ++i) {
    const Task task = ledger_.task(i), source = problem_.source[task];
    const double time = problem_.time[task];
    const double ready = source < 0 ? 0 : clock_.end(source) + problem_.lag[task];
    int best = i;
    for (int k = i - 1; k >= 0 && start_[k] - ready >= time - problem_.tiny; --k) {
      if (!ledger_.FitsBefore(i, k)) break;
      if (source >= 0 && clock_.start(source) >= turn_[k]) break;
      const double begin = std::max(ready, k > 0 ? end_[k - 1] : 0);
      if (start_[k] - begin >= time - problem_.tiny) best = k;
    }
    if (best == i) continue;
    const double begin = std::max(ready, best > 0 ? end_[best - 1] : 0);
    ledger_.Move(i, best);
    std::rotate(start_.begin() + best, start_.begin() + i, start_.begin() + i + 1);
    std::rotate(end_.begin() + best, end_.begin() + i, end_.begin() + i + 1);
    start_[best] = begin;
    end_[best] = begin + time;
    turn_.erase(turn_.begin() + i);
    turn_.insert(turn_.begin() + best, turn_[best]);
    ++moved;
  }
  return moved;
}

int Polisher::Postpone(int device) {
  ledger_.Open(device);
  const int size = ledger_.size();
  start_.resize(size);
  end_.resize(size);
  for (int i = 0; i < size; ++i) {
    start_[i] = clock_.latest_start(ledger_.task(i));
    end_[i] = start_[i] + problem_.time[ledger_.task(i)];
  }
  turn_ = start_;
  const double latest_end = clock_.makespan() - problem_.after[device];
  int moved = 0;
  for (int i = size - 2; i >= 0; --i) {
    const Task task = ledger_.task(i), sink = problem_.sink[task];
    if (PartOf(task) != Part::kForward && PartOf(task) != Part::kRecompute) continue;
    const double time = problem_.time[task];
    const double due = sink < 0 ? latest_end : clock_.latest_start(sink) - problem_.lag[sink];
    int best = i;
    for (int k = i + 1; k < size && due - end_[k] >= time - problem_.tiny; ++k) {
      if (!MaySwap(problem_, ledger_.task(k), task)) break;
      if (sink >= 0 && clock_.latest_start(sink) <= turn_[k]) break;
      const double until = std::min(due, k + 1 < size ? start_[k + 1] : latest_end);
      if (until - end_[k] >= time - problem_.tiny) best = k;
    }
    if (best == i) continue;
    const double until = std::min(due, best + 1 < size ? start_[best + 1] : latest_end);
    ledger_.Move(i, best);
    std::rotate(start_.begin() + i, start_.begin() + i + 1, start_.begin() + best + 1);
    std::rotate(end_.begin() + i, end_.begin() + i + 1, end_.begin() + best + 1);
    start_[best] = until - time;
    end_[best] = until;
    turn_.insert(turn_.begin() + best + 1, turn_[best]);
    turn_.erase(turn_.begin() + i);
    ++moved;
  }
  return moved;
}

}  // namespace

PolishOptions PolishFor(const Problem& problem) {
  constexpr int kManyCells = 1'500, kVeryManyCells = 10'000;
  if (problem.cells() < kManyCells) return {};
  const bool very = problem.cells() >= kVeryManyCells;
  return {.retime = Retime::kEachRound, .rounds = very ? 1 : 3, .threads = very ? 2 : 1};
}

double Polish(const Problem& problem, const PolishOptions& options, Clock& clock, Plan& plan) {
  std::vector<int> index(problem.cells());
  // The sum over devices from `begin` on; every so many are another thread's.
  const auto on_some = [&](int begin, auto change) {
    Polisher polisher(problem, clock, plan, index);
    int changes = 0;
    for (int d = begin; d < problem.devices; d += options.threads) changes += change(polisher, d);
    return changes;
  };
  const auto on_all = [&](auto change) {
    std::vector<std::future<int>> others;
    for (int i = 1; i < options.threads; ++i)
      others.push_back(std::async(kInBackground, on_some, i, change));
    int changes = on_some(0, change);
    for (auto& other : others) changes += other.get();
    return changes;
  };
  int changes = 1;
  for (int round = 0; round < options.rounds && changes > 0; ++round) {
    changes = 0;
    if (round > 0 || options.first == PolishOptions::kKeep) {
      changes += on_all([&](Polisher& on, int device) { return on.Keep(device); });
      clock.Earliest(plan);
    }
    changes += on_all([&](Polisher& on, int device) {
      const int moved = on.Prepose(device);
      if (moved > 0 && options.retime == Retime::kEachDevice) clock.Earliest(plan);
      return moved;
    });
    clock.Earliest(plan);
    clock.Latest();
    on_all([](Polisher& on, int device) { return on.Postpone(device); });
    clock.Earliest(plan);
  }
  return clock.makespan();
}

}  // namespace pp::search
