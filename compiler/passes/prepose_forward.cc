// prepose-forward: the fourth of Mario's passes (Liu et al., 2025, section 4.1). A checkpointed
// forward moves into an earlier bubble of its device; the slot that it leaves lets the instructions
// after it start earlier. It keeps little memory, so it can afford to wait for its recompute.
//
//   d2 | C0 C1 R0  . B0 -- C2 R1 B1 --   =>   d2 | C0 C1 R0 C2 B0 -- R1 B1 --
//
// Whether a move helps is decided by the timeline, not by the bubble's length: a forward that does
// not fit may still delay less than it frees. A move is kept if the makespan gets shorter, or stays
// the same and the device finishes what was passed over no later than before. If the move passes a
// message's producer or consumer, insert-comm places that message again, including the producer's
// SEND.
//
// The search's timeline, on which moves are tried, looks only at what a move changes. It lets no
// message wait for another one on its channel, and no device at a WAIT: if the plan takes longer
// than it says, all is done anew, and what it thinks better is played before it is kept.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "compiler/pass.h"
#include "compiler/passes/schedule.h"
#include "compiler/play/ideal.h"
#include "compiler/search/timeline.h"

namespace pp {
namespace {

using search::Task;

constexpr double kSame = 1e-9;

// `plays`: what helps according to the timeline is also played.
class Preposer {
 public:
  Preposer(Program& program, const CostModel& costs, bool plays)
      : program_(program),
        durations_(costs, program),
        problem_(search::MakeProblem(program, costs,
                                     search::ActivationMemory(program, costs, {HUGE_VAL}))),
        plays_(plays),
        timeline_(problem_) {}

  // The makespan. REQUIRES: the lists have no cycle.
  double Run() {
    timeline_.Load(search::MakePlan(program_, problem_));
    makespan_ = timeline_.makespan();
    if (plays_) makespan_ = Play(&times_);
    const double bound = Bound();
    const auto done = [&] {
      return timeline_.work() + played_ >= kMostWork || makespan_ <= bound * (1 + kSame);
    };
    for (double before = kNever; makespan_ < before && !done();) {
      before = makespan_;
      for (int d = program_.devices - 1; d >= 0; --d)
        for (size_t i = 1; i < timeline_.list(d).size() && !done(); ++i) PreposeOn(d, i);
    }
    return makespan_;
  }

 private:
  static constexpr int64_t kMostWork = 50'000'000;  // tasks looked at: a few seconds

  double start(Task task) const { return plays_ ? times_[task].start : timeline_.start(task); }
  double end(Task task) const { return plays_ ? times_[task].end : timeline_.end(task); }

  // No order of the same instructions is faster: a device's first micro-batch comes through the
  // earlier stages, and its last gradient goes back through them.
  double Bound() const {
    double bound = 0;
    for (int d = 0; d < program_.devices; ++d) {
      double time = 0;
      for (const Task task : timeline_.list(d)) time += problem_.time[task];
      const int first = program_.StagesOf(d).front();
      for (int s = 0; s < first; ++s)
        time += durations_({.op = Op::kForward, .stage = s}) +
                durations_({.op = Op::kBackward, .stage = s});
      bound = std::max(bound, time);
    }
    return bound;
  }

  // A checkpointed forward goes into the earliest of the bubbles after its input has arrived in
  // which it helps.
  void PreposeOn(int device, size_t from) {
    const std::vector<Task>& list = timeline_.list(device);
    const Task task = list[from], source = problem_.source[task];
    const bool drops = timeline_.plan().dropped[search::CellOf(task)] != 0;
    if (search::PartOf(task) != Part::kForward || !drops) return;
    const double ready = source < 0 ? 0 : end(source);
    bubbles_.clear();
    for (size_t at = from; at > 0 && start(list[at - 1]) > ready; --at) {
      const double idle_from = at == 1 ? 0 : end(list[at - 2]);
      if (start(list[at - 1]) > idle_from + kSame) bubbles_.push_back(at - 1);
    }
    for (; !bubbles_.empty(); bubbles_.pop_back())
      if (Try(device, from, bubbles_.back())) return;
  }

  // Whether the end comes earlier, or no later and neither does that of what is passed over.
  bool Helps(double makespan, double passed, double passed_before) const {
    return makespan < makespan_ * (1 - kSame) ||
           (makespan <= makespan_ * (1 + kSame) && passed <= passed_before * (1 + kSame));
  }

  // Moves list[from] before list[to], and back if that does not help.
  bool Try(int device, size_t from, size_t to) {
    const std::vector<Task>& list = timeline_.list(device);
    const Task task = list[from], next = list[to], passed = list[from - 1];
    const double before = end(task);
    if (!timeline_.Move(device, static_cast<int>(from), static_cast<int>(to))) return false;
    const double makespan = timeline_.Retime(makespan_ * (1 + kSame));
    const bool may = makespan < kNever && Helps(makespan, timeline_.end(passed), before);
    if (!may || (plays_ && !TryPlaying(device, task, next, passed, before))) {
      timeline_.Undo();
      return false;
    }
    timeline_.Commit();
    if (plays_) return true;
    MoveInList(device, task, next);
    makespan_ = makespan;
    return true;
  }

  bool TryPlaying(int device, Task task, Task next, Task passed, double before) {
    const std::vector<Instruction> list = program_.lists[device].body;
    MoveInList(device, task, next);
    std::vector<Span> times;
    const double makespan = Play(&times);
    const bool helps = makespan < kNever && Helps(makespan, times[passed].end, before);
    if (helps) {
      times_ = std::move(times);
      makespan_ = makespan;
    } else {
      program_.lists[device].body = list;
    }
    return helps;
  }

  // Moves the task before `next`, each with the LOADs and WAITs that stand before it.
  void MoveInList(int device, Task task, Task next) {
    auto& list = program_.lists[device].body;
    const auto place = [&](Task wanted) {
      return std::find_if(list.begin(), list.end(),
                          [&](const Instruction& i) { return TaskOf(i) == wanted; });
    };
    const auto with = [&](auto at) {
      while (at != list.begin() && (at[-1].op == Op::kLoad || at[-1].op == Op::kWait)) --at;
      return at;
    };
    const auto at = place(task);
    std::rotate(with(place(next)), with(at), at + 1);
  }

  std::optional<Task> TaskOf(const Instruction& i) const {
    const auto part = Info(i.op).part;
    if (!part) return std::nullopt;
    return search::MakeTask(problem_.Cell(i.stage, i.micro), *part);
  }

  // When each task runs. The makespan; kNever if the lists have a cycle.
  double Play(std::vector<Span>* times) {
    const auto spans = IdealTimeline(program_, FindMessages(program_), durations_);
    if (!spans.ok()) return kNever;
    times->resize(problem_.time.size());
    for (int d = 0; d < program_.devices; ++d)
      for (size_t i = 0; i < (*spans)[d].size(); ++i, ++played_)
        if (const auto task = TaskOf(program_.lists[d].body[i])) (*times)[*task] = (*spans)[d][i];
    return MakespanOf(*spans);
  }

  Program& program_;
  const Durations durations_;
  const search::Problem problem_;
  const bool plays_;
  search::Timeline timeline_;
  std::vector<Span> times_;  // by task, as played
  double makespan_ = 0;
  int64_t played_ = 0;           // instructions
  std::vector<size_t> bubbles_;  // of one forward: what it may go before, the latest first
};

}  // namespace

Status PreposeForward(Program& program, const PassContext& context) {
  PP_RETURN_IF_ERROR(CheckWholeBackwards(program, "prepose-forward"));
  const Durations durations(context.costs, program);
  PP_RETURN_IF_ERROR(IdealTimeline(program, FindMessages(program), durations).status());
  Program moved = program;
  const double makespan = Preposer(moved, context.costs, false).Run();
  const auto spans = IdealTimeline(moved, FindMessages(moved), durations);
  if (spans.ok() && MakespanOf(*spans) <= makespan * (1 + kSame)) {
    program = std::move(moved);
  } else {
    Preposer(program, context.costs, true).Run();
  }
  return {};
}

}  // namespace pp
