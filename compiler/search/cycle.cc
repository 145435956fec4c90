#include "compiler/search/cycle.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace pp::search {
namespace {

// The task of another micro-batch, perhaps of another problem.
Task Moved(const Problem& from, Task task, const Problem& to, int micro) {
  return MakeTask(to.Cell(from.StageOf(CellOf(task)), micro), PartOf(task));
}

int MicroOf(const Problem& problem, Task task) { return problem.MicroOf(CellOf(task)); }

// Whether each task is there once, and a recompute where one is needed.
bool IsComplete(const Problem& problem, const Plan& plan) {
  std::vector<int> seen(4 * problem.cells());
  for (const auto& list : plan.lists)
    for (const Task task : list) ++seen[task];
  for (int cell = 0; cell < problem.cells(); ++cell)
    if (seen[MakeTask(cell, Part::kForward)] != 1 || seen[MakeTask(cell, Part::kBackward)] != 1 ||
        seen[MakeTask(cell, Part::kRecompute)] != plan.dropped[cell] ||
        seen[MakeTask(cell, Part::kWeight)] != problem.split[cell])
      return false;
  return true;
}

}  // namespace

Selection::Selection(const Problem& of, std::vector<int> micros)
    : of_(of), problem_(of), micros_(std::move(micros)), index_(of.micros, -1) {
  problem_.micros = static_cast<int>(micros_.size());
  for (int m = 0; m < problem_.micros; ++m) index_[micros_[m]] = m;
  const int cells = problem_.cells();
  problem_.device.resize(cells);
  problem_.held_of.resize(cells);
  problem_.sum.resize(cells);
  problem_.split.resize(cells);
  problem_.time.resize(4 * cells);
  problem_.lag.resize(4 * cells);
  problem_.source.resize(4 * cells);
  problem_.sink.resize(4 * cells);
  const auto ours = [&](Task task) {
    return task < 0 ? task : Moved(of, task, problem_, index_[MicroOf(of, task)]);
  };
  for (int cell = 0; cell < cells; ++cell) {
    const int theirs = of.Cell(problem_.StageOf(cell), micros_[problem_.MicroOf(cell)]);
    problem_.device[cell] = of.device[theirs];
    problem_.held_of[cell] = of.held_of[theirs];
    problem_.sum[cell] = of.sum[theirs];
    problem_.split[cell] = of.split[theirs];
    for (const Part part : {Part::kForward, Part::kRecompute, Part::kBackward, Part::kWeight}) {
      const Task task = MakeTask(cell, part), other = MakeTask(theirs, part);
      problem_.time[task] = of.time[other];
      problem_.lag[task] = of.lag[other];
      problem_.source[task] = ours(of.source[other]);
      problem_.sink[task] = ours(of.sink[other]);
    }
  }
}

Plan Selection::Select(const Plan& plan) const {
  Plan selected;
  selected.dropped.assign(problem_.cells(), 0);
  for (const auto& list : plan.lists) {
    auto& own = selected.lists.emplace_back();
    for (const Task task : list) {
      const int micro = index_[MicroOf(of_, task)];
      if (micro < 0) continue;
      own.push_back(Moved(of_, task, problem_, micro));
      selected.dropped[CellOf(own.back())] = plan.dropped[CellOf(task)];
    }
  }
  return selected;
}

Plan Selection::Original(const Plan& plan) const {
  Plan original = plan;
  for (auto& list : original.lists)
    for (Task& task : list) {
      const int cell = CellOf(task);
      task = Moved(problem_, task, of_, micros_[problem_.MicroOf(cell)]);
      original.dropped[CellOf(task)] = plan.dropped[cell];
    }
  return original;
}

std::vector<int> AsTheyBegin(const Problem& problem, const Plan& plan) {
  Clock clock(problem);
  clock.Earliest(plan);
  const auto start = [&](int m) {
    return clock.start(MakeTask(problem.Cell(0, m), Part::kForward));
  };
  std::vector<int> micros(problem.micros);
  std::iota(micros.begin(), micros.end(), 0);
  std::stable_sort(micros.begin(), micros.end(), [&](int a, int b) { return start(a) < start(b); });
  return micros;
}

Plan RepeatInTime(const Problem& problem, const Plan& plan, const Clock& clock, int begin,
                  int period, double time, const Problem& to) {
  struct Timed {
    double start;
    size_t at;  // in the given list
    Task task;
  };
  const int more = (to.micros - problem.micros) / period;
  Plan repeated;
  repeated.dropped.assign(to.cells(), 0);
  for (const auto& list : plan.lists) {
    std::vector<Timed> timed;
    for (size_t at = 0; at < list.size(); ++at) {
      const int micro = MicroOf(problem, list[at]);
      const int first = micro < begin + period ? 0 : more, last = micro < begin ? 0 : more;
      for (int copy = first; copy <= last; ++copy) {
        const Task task = Moved(problem, list[at], to, micro + copy * period);
        timed.push_back({clock.start(list[at]) + copy * time, at, task});
        repeated.dropped[CellOf(task)] = plan.dropped[CellOf(list[at])];
      }
    }
    std::stable_sort(timed.begin(), timed.end(), [](const Timed& a, const Timed& b) {
      return std::tie(a.start, a.at) < std::tie(b.start, b.at);
    });
    auto& own = repeated.lists.emplace_back();
    for (const Timed& each : timed) own.push_back(each.task);
  }
  return repeated;
}

std::optional<Plan> RepeatInOrder(const Problem& problem, const Plan& plan, const Cycle& cycle,
                                  const Problem& to) {
  const int more = (to.micros - problem.micros) / cycle.period;
  const int middle = cycle.begin + cycle.copies / 2 * cycle.period;
  Plan repeated;
  repeated.dropped.assign(to.cells(), 0);
  bool inside = true;
  for (const auto& list : plan.lists) {
    const auto first_of = [&](int micro) {
      return std::find_if(list.begin(), list.end(),
                          [&](Task task) { return MicroOf(problem, task) == micro; });
    };
    auto& own = repeated.lists.emplace_back();
    const auto put = [&](auto from, auto until, int copy) {
      for (; from != until && inside; ++from) {
        const int micro = MicroOf(problem, *from) + copy * cycle.period;
        inside = micro < to.micros;
        if (!inside) break;
        own.push_back(Moved(problem, *from, to, micro));
        repeated.dropped[CellOf(own.back())] = plan.dropped[CellOf(*from)];
      }
    };
    const auto begin = first_of(middle), end = first_of(middle + cycle.period);
    if (begin >= end) return std::nullopt;
    put(list.begin(), end, 0);
    for (int copy = 1; copy <= more; ++copy) put(begin, end, copy);
    put(end, list.end(), more);
  }
  if (!inside || !IsComplete(to, repeated)) return std::nullopt;
  return repeated;
}

}  // namespace pp::search
