#include "compiler/search/anneal.h"

#include <algorithm>
#include <cmath>

#include "compiler/search/ledger.h"
#include "compiler/search/timeline.h"

namespace pp::search {
namespace {

// Accepted losses at first, in mean durations of a task over the square root of the number of
// cells, and what is left of them at last.
constexpr double kWarm = 0.8, kCold = 0.3;
constexpr int kMostRepairs = 6;
constexpr int64_t kTry = 25;  // as much work as timing so many tasks

class Annealer {
 public:
  Annealer(Workbench& bench, const Cycle& cycle)
      : bench_(bench),
        problem_(bench.problem),
        random_(bench.random),
        cycle_(cycle),
        line_(problem_) {
    warm_ = kWarm * problem_.MeanTime() / std::sqrt(problem_.cells());
    for (const Held& held : problem_.memory.held) can_drop_ |= held.dropped < held.forward;
  }

  void Shorten(const Plan& start, int64_t work) {
    line_.Load(start);
    Trace();
    Progress progress(*this, work);
    for (; progress() < 1 && !bench_.Finished(); ++progress.tries) {
      const double loss = -warm_ * std::pow(kCold, progress()) * std::log(random_.Unit());
      if (!Change() || line_.Retime(line_.makespan() + loss) == kNever) {
        line_.Undo();
        continue;
      }
      line_.Commit();
      bench_.Offer(line_.plan(), line_.makespan());
      Trace();
    }
    bench_.OfferEqual(line_.plan(), line_.makespan());
  }

 private:
  // How much of the allowed work is done, from 0 to 1.
  struct Progress {
    Progress(const Annealer& annealer, int64_t work_in)
        : line(annealer.line_), begin(line.work()), work(static_cast<double>(work_in)) {}
    double operator()() const {
      return static_cast<double>(line.work() - begin + kTry * tries) / work;
    }
    const Timeline& line;
    const int64_t begin;
    const double work;
    int64_t tries = 0;
  };

  // A longest chain without waits, from its last task to its first, and where on it the blocks
  // of one device begin.
  void Trace() {
    chain_.clear();
    blocks_.clear();
    Task task = -1;
    for (int d = 0; d < problem_.devices; ++d)
      if (!line_.list(d).empty() &&
          line_.end(line_.list(d).back()) + problem_.after[d] == line_.makespan())
        task = line_.list(d).back();
    while (task >= 0) {
      const Task before = line_.Before(task), source = problem_.source[task];
      const bool by_list = before >= 0 && line_.end(before) == line_.start(task);
      const bool by_source =
          source >= 0 && line_.end(source) + problem_.lag[task] == line_.start(task);
      const bool go_on = by_list && (!by_source || random_.Below(2) == 0);
      chain_.push_back(task);
      if (blocks_.empty()) blocks_.push_back(0);
      if (!go_on) blocks_.push_back(static_cast<int>(chain_.size()));
      task = go_on ? before : by_source ? source : -1;
    }
  }

  bool Change() {
    if (bench_.Uses(Method::kAcross) && random_.Below(3) == 0) return MoveAcross();
    const int what = random_.Below(16);
    if (what < 9 && bench_.Uses(Method::kCritical)) return MoveCritical();
    const int device = random_.Below(problem_.devices);
    const bool toggles = what >= 13 && can_drop_ && bench_.Uses(Method::kToggle);
    return (toggles ? Toggle(device) : MoveAny(device)) && Repair(device);
  }

  // Moves list[from] towards `to`, as far as it may go. Whether it has moved.
  bool Shift(int device, int from, int to) {
    const auto& list = line_.list(device);
    to = std::clamp(to, 0, static_cast<int>(list.size()) - 1);
    const int step = from < to ? 1 : -1;
    int at = from;
    while (at != to && MaySwap(problem_, list[at + step], list[from])) at += step;
    if (at == from) return false;
    const Task task = list[from], passed = list[at];
    return InCycle(task) ? ShiftCopies(device, task, passed, step) : line_.Move(device, from, at);
  }

  bool InCycle(Task task) const { return cycle_.Has(problem_.MicroOf(CellOf(task))); }

  // The same task so many periods later; -1: there is none.
  Task Later(Task task, int periods) const {
    const int micro = problem_.MicroOf(CellOf(task)) + periods * cycle_.period;
    if (micro < 0 || micro >= problem_.micros) return -1;
    return task + MakeTask(periods * cycle_.period, Part{});
  }

  // Moves the task in all copies past the other one.
  bool ShiftCopies(int device, Task task, Task passed, int step) {
    const int own = cycle_.CopyOf(problem_.MicroOf(CellOf(task)));
    for (int copy = 0; copy < cycle_.copies; ++copy) {
      const Task moved = Later(task, copy - own), other = Later(passed, copy - own);
      if (other < 0) continue;
      const auto& list = line_.list(device);
      const int from = line_.position(moved), to = line_.position(other);
      if (from < 0 || to < 0 || (to - from) * step <= 0) continue;
      for (int at = from; at != to; at += step)
        if (!MaySwap(problem_, list[at + step], moved)) return false;
      if (!line_.Move(device, from, to)) return false;
    }
    return true;
  }

  // In all copies.
  void SetDropped(int cell, bool dropped) {
    const Task task = MakeTask(cell, Part::kForward);
    const bool alike = InCycle(task);
    const int own = alike ? cycle_.CopyOf(problem_.MicroOf(cell)) : 0;
    for (int copy = 0; copy < (alike ? cycle_.copies : 1); ++copy) {
      const int other = alike ? CellOf(Later(task, copy - own)) : cell;
      if (line_.plan().dropped[other] == dropped) continue;
      if (dropped) {
        line_.Drop(other);
      } else {
        line_.Keep(other);
      }
    }
  }

  bool MoveCritical() {
    const int block = random_.Below(static_cast<int>(blocks_.size()) - 1);
    const int begin = blocks_[block], size = blocks_[block + 1] - begin;
    if (size < 2) return false;
    // The chain runs backwards: chain_[begin] is the last one of the block.
    const int device = problem_.device[CellOf(chain_[begin])];
    const int last = line_.position(chain_[begin]),
              first = line_.position(chain_[begin + size - 1]);
    int from, to;
    switch (random_.Below(4)) {
      case 0:  // before the first one
        from = first + 1 + random_.Below(size - 1), to = first;
        break;
      case 1:  // behind the last one
        from = first + random_.Below(size - 1), to = last;
        break;
      case 2:
        from = first + 1, to = first;
        break;
      default:
        from = last, to = last - 1;
    }
    return Shift(device, from, to) && Repair(device);
  }

  bool MoveAny(int device) {
    constexpr int kMostPlaces = 10;
    const int size = static_cast<int>(line_.list(device).size());
    if (size < 2) return false;
    const int from = random_.Below(size), places = 1 + random_.Below(kMostPlaces);
    return Shift(device, from, random_.Below(2) == 0 ? from - places : from + places);
  }

  // The forwards of a micro-batch on a few stages, or its backwards, all as many places: earlier
  // with those that they wait for, or later with those that wait for them.
  bool MoveAcross() {
    constexpr int kMostPlaces = 5, kMostStages = 12;
    const auto& list = line_.list(random_.Below(problem_.devices));
    if (list.empty()) return false;
    const auto& from = random_.Below(2) == 0 ? chain_ : list;
    Task task = from[random_.Below(static_cast<int>(from.size()))];
    const int places = 1 + random_.Below(kMostPlaces);
    const bool earlier = random_.Below(2) == 0;
    const int most = 1 + random_.Below(kMostStages);
    int moved = 0;
    for (; task >= 0 && moved < most; ++moved) {
      const int device = problem_.device[CellOf(task)], at = line_.position(task);
      if (!Shift(device, at, earlier ? at - places : at + places)) break;
      if (!Repair(device)) return false;
      task = earlier ? problem_.source[task] : problem_.sink[task];
    }
    return moved > 0;
  }

  bool Toggle(int device) {
    const auto& list = line_.list(device);
    if (list.empty()) return false;
    const int cell = CellOf(list[random_.Below(static_cast<int>(list.size()))]);
    SetDropped(cell, !line_.plan().dropped[cell]);
    return true;
  }

  // Tries one of the ways to hold less where it is too much. False: there is none.
  bool Relieve(int device, int above) {
    const auto& list = line_.list(device);
    const int size = static_cast<int>(list.size());
    int frees = above;  // the next weight half or backward
    while (frees < size && !line_.Frees(list[frees])) ++frees;
    switch (random_.Below(can_drop_ ? 3 : 2)) {
      case 0:  // what frees memory goes first
        return frees < size && Shift(device, frees, above);
      case 1:  // what takes it goes behind that
        return frees < size && Shift(device, above, frees);
      default: {  // one of those that are held is dropped
        const int cell = CellOf(list[random_.Below(above + 1)]);
        const Task backward = MakeTask(cell, Part::kBackward);
        if (!line_.plan().dropped[cell] && line_.position(backward) > above) SetDropped(cell, true);
        return true;
      }
    }
  }

  // Makes room where the device now holds too much.
  bool Repair(int device) {
    for (int repairs = 0; repairs < kMostRepairs; ++repairs) {
      const int above = line_.FirstAbove(device);
      if (above < 0) return true;
      if (!Relieve(device, above)) return false;
    }
    return line_.FirstAbove(device) < 0;
  }

  Workbench& bench_;
  const Problem& problem_;
  Random& random_;
  const Cycle cycle_;
  Timeline line_;
  double warm_ = 0;
  bool can_drop_ = false;
  std::vector<Task> chain_;
  std::vector<int> blocks_;
};

}  // namespace

void Anneal(Workbench& bench, const Plan& start, int64_t work, const Cycle& cycle) {
  Annealer(bench, cycle).Shorten(start, work);
}

}  // namespace pp::search
