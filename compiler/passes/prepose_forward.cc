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
#include <algorithm>
#include <cmath>

#include "compiler/pass.h"
#include "compiler/passes/schedule.h"
#include "compiler/play/ideal.h"
#include "compiler/search/timeline.h"

namespace pp {
namespace {

using search::CellOf;
using search::Part;
using search::PartOf;
using search::Task;

class Preposer {
 public:
  Preposer(const search::Problem& problem, Program& program)
      : program_(program), problem_(problem), timeline_(problem) {}

  void Run() {
    timeline_.Load(search::MakePlan(program_, problem_));
    const double bound = Bound();
    const auto done = [&] { return IsDone(bound); };
    for (double before = kNever; timeline_.makespan() < before && !done();) {
      before = timeline_.makespan();
      for (int d = program_.devices - 1; d >= 0; --d)
        for (size_t i = 1; i < timeline_.list(d).size() && !done(); ++i) PreposeOn(d, i);
    }
  }

 private:
  static constexpr int64_t kMostWork = 50'000'000;  // tasks looked at: a second
  static constexpr double kSame = 1e-9;

  bool IsDone(double bound) const {
    return timeline_.work() >= kMostWork || timeline_.makespan() <= bound * (1 + kSame);
  }

  // No order of the same instructions is faster: a device's first micro-batch comes through the
  // earlier stages, and its last gradient goes back through them.
  double Bound() const {
    double bound = 0;
    for (int d = 0; d < program_.devices; ++d) {
      double time = 0;
      for (const Task task : timeline_.list(d)) time += problem_.time[task];
      for (int s = 0; s < program_.StagesOf(d).front(); ++s)
        time += problem_.Time(problem_.Cell(s, 0), Part::kForward) +
                problem_.Time(problem_.Cell(s, 0), Part::kBackward);
      bound = std::max(bound, time);
    }
    return bound;
  }

  // Into the earliest of the bubbles after its input has arrived in which it helps.
  void PreposeOn(int device, size_t from) {
    const std::vector<Task>& list = timeline_.list(device);
    const Task task = list[from], source = problem_.source[task];
    if (PartOf(task) != Part::kForward || !timeline_.plan().dropped[CellOf(task)]) return;
    const double ready = source < 0 ? 0 : timeline_.end(source) + problem_.lag[task];
    bubbles_.clear();
    for (size_t at = from; at > 0 && timeline_.start(list[at - 1]) > ready; --at) {
      const double idle_from = at == 1 ? 0 : timeline_.end(list[at - 2]);
      if (timeline_.start(list[at - 1]) > idle_from + kSame) bubbles_.push_back(at - 1);
    }
    for (; !bubbles_.empty(); bubbles_.pop_back())
      if (Try(device, from, bubbles_.back())) return MoveInList(device, from, bubbles_.back());
  }

  // Moves list[from] before list[to], and back if that does not help.
  bool Try(int device, size_t from, size_t to) {
    const double makespan = timeline_.makespan();
    const double done = timeline_.end(timeline_.list(device)[from]);
    if (!timeline_.Move(device, static_cast<int>(from), static_cast<int>(to))) return false;
    const double time = timeline_.Retime(makespan * (1 + kSame));
    const bool better = time < makespan * (1 - kSame);
    const bool free =
        time < kNever && timeline_.end(timeline_.list(device)[from]) <= done * (1 + kSame);
    if (better || free) {
      timeline_.Commit();
    } else {
      timeline_.Undo();
    }
    return better || free;
  }

  // The same in the program, with the LOADs and WAITs that stand before an instruction.
  void MoveInList(int device, size_t from, size_t to) {
    auto& list = program_.lists[device].body;
    const auto begin = [&](size_t task) {
      size_t at = 0;
      for (size_t skip = task;; ++at)
        if (IsCompute(list[at]) && skip-- == 0) break;
      return at;
    };
    const auto first = [&](size_t at) {
      while (at > 0 && (list[at - 1].op == Op::kLoad || list[at - 1].op == Op::kWait)) --at;
      return list.begin() + static_cast<int64_t>(at);
    };
    const size_t last = begin(from);
    std::rotate(first(begin(to)), first(last), list.begin() + static_cast<int64_t>(last) + 1);
  }

  Program& program_;
  const search::Problem& problem_;
  search::Timeline timeline_;
  std::vector<size_t> bubbles_;  // of one forward: what it may go before, the latest first
};

}  // namespace

Status PreposeForward(Program& program, const PassContext& context) {
  PP_RETURN_IF_ERROR(CheckWholeBackwards(program, "prepose-forward"));
  const Durations durations(context.costs, program);
  PP_RETURN_IF_ERROR(
      IdealTimeline(program, FindMessages(program), durations).status());  // no cycle
  const auto memory = search::ActivationMemory(program, context.costs, {HUGE_VAL});
  Preposer(search::MakeProblem(program, context.costs, memory), program).Run();
  return {};
}

}  // namespace pp
