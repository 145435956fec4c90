#include "compiler/search/starts.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace pp::search {
namespace {

// The most that a cell holds, from its forward or its recompute on.
int64_t MostKept(const Problem& problem, int cell) {
  const Held& held = problem.HeldBy(cell);
  return problem.split[cell] ? std::max(held.forward, held.input_half) : held.forward;
}
int64_t MostRecomputed(const Problem& problem, int cell) {
  const Held& held = problem.HeldBy(cell);
  return problem.split[cell] ? std::max(held.recomputed, held.recomputed_half) : held.recomputed;
}

// One micro-batch's cells on one device, the first stage first: drops what it can within `limit`.
// Returns the memory it takes; above `limit` if impossible.
int64_t Choose(const Problem& problem, const std::vector<int>& cells, int64_t limit,
               std::vector<uint8_t>& dropped) {
  int64_t held = 0, peak = 0;
  for (size_t i = 0; i < cells.size(); ++i) {
    const Held& h = problem.HeldBy(cells[i]);
    const bool last = i + 1 == cells.size();  // its backward follows immediately
    const bool drop =
        !last && h.dropped < h.forward && held + MostRecomputed(problem, cells[i]) <= limit;
    dropped[cells[i]] = drop;
    peak = std::max(
        peak, held + (drop ? MostRecomputed(problem, cells[i]) : MostKept(problem, cells[i])));
    held += drop ? h.dropped : h.forward;
  }
  return peak;
}

int64_t Least(const Problem& problem, const std::vector<int>& cells,
              std::vector<uint8_t>& dropped) {
  int64_t low = 0, high = 0;  // enough is in (low, high]
  for (int cell : cells) high += std::max(MostRecomputed(problem, cell), MostKept(problem, cell));
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (Choose(problem, cells, middle, dropped) <= middle ? high : low) = middle;
  }
  return Choose(problem, cells, high, dropped);
}

// Whether the least for one micro-batch's cells is also that for the other's.
bool AreAlike(const Problem& problem, const std::vector<int>& a, const std::vector<int>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](int x, int y) {
    return problem.held_of[x] == problem.held_of[y] && problem.split[x] == problem.split[y];
  });
}

}  // namespace

Thrifty OneByOne(const Problem& problem, std::vector<int> order) {
  if (order.empty()) {
    order.resize(problem.micros);
    std::iota(order.begin(), order.end(), 0);
  }
  Thrifty thrifty;
  thrifty.plan.lists.resize(problem.devices);
  thrifty.plan.dropped.assign(problem.cells(), 0);
  thrifty.limit.assign(problem.devices, 0);
  auto& dropped = thrifty.plan.dropped;
  std::vector<std::vector<int>> before;  // the micro-batch's before, by device
  for (const int m : order) {
    std::vector<std::vector<int>> cells(problem.devices);
    for (int s = 0; s < problem.stages; ++s)
      cells[problem.device[problem.Cell(s, m)]].push_back(problem.Cell(s, m));
    for (int d = 0; d < problem.devices; ++d) {
      if (!before.empty() && AreAlike(problem, before[d], cells[d])) {
        for (size_t i = 0; i < cells[d].size(); ++i) dropped[cells[d][i]] = dropped[before[d][i]];
      } else {
        thrifty.limit[d] = std::max(thrifty.limit[d], Least(problem, cells[d], dropped));
      }
      auto& list = thrifty.plan.lists[d];
      for (int cell : cells[d]) list.push_back(MakeTask(cell, Part::kForward));
      for (size_t i = cells[d].size(); i-- > 0;) {
        const int cell = cells[d][i];
        if (dropped[cell]) list.push_back(MakeTask(cell, Part::kRecompute));
        list.push_back(MakeTask(cell, Part::kBackward));
        if (problem.split[cell]) list.push_back(MakeTask(cell, Part::kWeight));
      }
    }
    before = std::move(cells);
  }
  return thrifty;
}

std::vector<int> OrderOfSums(const Problem& problem, const Plan& plan) {
  std::vector<std::vector<int>> after(problem.micros);  // by micro-batch: those right behind it
  std::vector<int> waits_for(problem.micros);           // how many
  std::vector<int> last(problem.stages * problem.pipes, -1);  // by sum
  for (const auto& list : plan.lists)
    for (const Task task : list) {
      if (!problem.AddsToSum(task)) continue;
      const int micro = problem.MicroOf(CellOf(task));
      const int before = std::exchange(last[problem.sum[CellOf(task)]], micro);
      if (before < 0) continue;
      after[before].push_back(micro);
      ++waits_for[micro];
    }
  std::priority_queue<int, std::vector<int>, std::greater<int>> next;
  for (int m = 0; m < problem.micros; ++m)
    if (waits_for[m] == 0) next.push(m);
  std::vector<int> order;
  while (!next.empty()) {
    order.push_back(next.top());
    next.pop();
    for (const int micro : after[order.back()])
      if (--waits_for[micro] == 0) next.push(micro);
  }
  return static_cast<int>(order.size()) == problem.micros ? order : std::vector<int>();
}

bool SameWork(const Problem& problem, const Plan& plan, const Plan& other) {
  const auto tasks = [](std::vector<Task> list) {
    std::erase_if(list, [](Task task) { return PartOf(task) == Part::kRecompute; });
    std::sort(list.begin(), list.end());
    return list;
  };
  const auto additions = [&](const std::vector<Task>& list) {
    std::vector<std::pair<int, Task>> sums;
    for (const Task task : list)
      if (problem.AddsToSum(task)) sums.push_back({problem.sum[CellOf(task)], task});
    std::stable_sort(sums.begin(), sums.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    return sums;
  };
  for (int d = 0; d < problem.devices; ++d)
    if (tasks(plan.lists[d]) != tasks(other.lists[d]) ||
        additions(plan.lists[d]) != additions(other.lists[d]))
      return false;
  return true;
}

Plan KeepAll(const Plan& plan) {
  Plan kept = plan;
  std::fill(kept.dropped.begin(), kept.dropped.end(), 0);
  for (auto& list : kept.lists)
    std::erase_if(list, [](Task task) { return PartOf(task) == Part::kRecompute; });
  return kept;
}

Plan DropAll(const Plan& plan) {
  Plan dropped = plan;
  std::fill(dropped.dropped.begin(), dropped.dropped.end(), 1);
  for (auto& list : dropped.lists) {
    std::vector<Task> tasks;
    for (Task task : list) {
      if (PartOf(task) == Part::kRecompute) continue;
      if (PartOf(task) == Part::kBackward)
        tasks.push_back(MakeTask(CellOf(task), Part::kRecompute));
      tasks.push_back(task);
    }
    list = std::move(tasks);
  }
  return dropped;
}

Plan InGroups(const Problem& problem, const Plan& plan, const std::vector<int>& order, int size) {
  Plan grouped = KeepAll(plan);
  std::vector<int> place(problem.micros);
  for (int i = 0; i < problem.micros; ++i) place[order[i]] = i;
  const auto rank = [&](Task task) {  // (all forwards first,) group, stage forth or back
    const int cell = CellOf(task), stage = problem.StageOf(cell);
    const bool forward = PartOf(task) == Part::kForward;
    const int64_t group = (forward ? 0 : problem.micros) + place[problem.MicroOf(cell)] / size;
    return group * problem.stages + (forward ? stage : problem.stages - 1 - stage);
  };
  std::vector<std::pair<int64_t, Task>> ranked;
  for (auto& list : grouped.lists) {
    ranked.clear();
    for (const Task task : list) ranked.push_back({rank(task), task});
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < list.size(); ++i) list[i] = ranked[i].second;
  }
  return grouped;
}

}  // namespace pp::search
