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

#include "compiler/pass.h"
#include "compiler/passes/schedule.h"
#include "compiler/play/ideal.h"

namespace pp {
namespace {

class Preposer {
 public:
  Preposer(Program& program, const CostModel& costs)
      : program_(program), durations_(costs, program) {}

  Status Run() {
    messages_ = FindMessages(program_);
    auto spans = IdealTimeline(program_, messages_, durations_);
    if (!spans.ok()) return spans.status();
    spans_ = std::move(*spans);
    for (const DeviceList& list : program_.lists) {
      size_ += static_cast<int64_t>(list.body.size());
      work_.push_back(0);
      for (size_t i = 0; i < list.body.size(); ++i) {
        work_.back() += ComputeTime(list.body, i, durations_);
        has_waits_ |= list.body[i].op == Op::kWait;
      }
    }
    timed_ = size_;
    makespan_ = MakespanOf(spans_);
    bound_ = Bound();
    for (bool better = true; better && !Done();) {
      const double before = makespan_;
      for (int d = program_.devices - 1; d >= 0; --d) PreposeOn(d);
      better = makespan_ < before;
    }
    return {};
  }

 private:
  using List = std::vector<Instruction>;
  static constexpr int64_t kMostTimed = 50'000'000;  // instructions: a few seconds
  static constexpr double kSame = 1e-9;

  List& ListOf(int device) { return program_.lists[device].body; }

  static double MakespanOf(const Spans& spans) {
    double end = 0;
    for (const auto& list : spans)
      if (!list.empty()) end = std::max(end, list.back().end);
    return end;
  }

  // No order of the same instructions is faster: a device's first micro-batch comes through the
  // earlier stages, and its last gradient goes back through them.
  double Bound() const {
    double bound = 0;
    for (int d = 0; d < program_.devices; ++d) {
      double time = work_[d];
      for (int s = 0; s < program_.StagesOf(d).front(); ++s)
        time += durations_({.op = Op::kForward, .stage = s}) +
                durations_({.op = Op::kBackward, .stage = s});
      bound = std::max(bound, time);
    }
    return bound;
  }
  bool Done() const { return timed_ >= kMostTimed || makespan_ <= bound_ * (1 + kSame); }

  void PreposeOn(int device) {
    for (size_t i = 1; i < ListOf(device).size() && !Done(); ++i) {
      if (ListOf(device)[i].op != Op::kForwardDrop) continue;
      for (size_t to : Bubbles(device, i))
        if (Try(device, i, to)) break;
    }
  }

  // Positions before which the device idles after the forward's input has arrived, the earliest
  // first.
  std::vector<size_t> Bubbles(int device, size_t forward) const {
    const List& list = program_.lists[device].body;
    const auto& spans = spans_[device];
    const double ready = ReadyTime(device, forward);
    std::vector<size_t> bubbles;
    for (size_t at = forward; at > 0 && spans[at - 1].start > ready; --at) {
      const size_t i = at - 1;
      const double idle_from = i == 0 ? 0 : spans[i - 1].end;
      if (spans[i].start > idle_from + kSame && list[i].op != Op::kLoad) bubbles.push_back(i);
    }
    std::reverse(bubbles.begin(), bubbles.end());
    return bubbles;
  }

  // When the input of a forward is produced.
  double ReadyTime(int device, size_t forward) const {
    const Instruction& i = program_.lists[device].body[forward];
    if (i.stage == 0) return 0;
    const int maker = program_.DeviceOf(i.stage - 1, i.micro);
    const List& list = program_.lists[maker].body;
    for (size_t k = 0; k < list.size(); ++k)
      if ((list[k].op == Op::kForward || list[k].op == Op::kForwardDrop) &&
          list[k].stage == i.stage - 1 && list[k].micro == i.micro)
        return spans_[maker][k].end;
    return 0;
  }

  void Rotate(int device, size_t first, size_t middle, size_t last) {
    const auto begin = ListOf(device).begin();
    std::rotate(begin + first, begin + middle, begin + last);
    if (has_waits_) {
      messages_ = FindMessages(program_);
    } else {
      RotateMessages(device, static_cast<int>(first), static_cast<int>(middle),
                     static_cast<int>(last), messages_);
    }
  }

  // Moves list[from] before list[to], with its LOAD, and back if that does not help.
  bool Try(int device, size_t from, size_t to) {
    const size_t with = from - (ListOf(device)[from - 1].op == Op::kLoad);
    if (to > with) return false;
    const double done = spans_[device][from].end;
    Rotate(device, to, with, from + 1);
    constexpr double kRounded = 2 * kSame;
    auto spans =
        IdealTimelineUntil(makespan_ * (1 + kRounded), work_, program_, messages_, durations_);
    timed_ += size_;
    const double makespan = spans ? MakespanOf(*spans) : 0;
    const bool better = spans && makespan < makespan_ - kSame * makespan_;
    const bool free = spans && makespan <= makespan_ * (1 + kSame) &&
                      (*spans)[device][from].end <= done * (1 + kSame);
    if (better || free) {
      makespan_ = std::min(makespan_, makespan);
      spans_ = std::move(*spans);
      return true;
    }
    Rotate(device, to, to + (from + 1 - with), from + 1);
    return false;
  }

  Program& program_;
  const Durations durations_;
  std::vector<Message> messages_;
  Spans spans_;
  std::vector<double> work_;  // by device: the time of its instructions
  bool has_waits_ = false;
  double makespan_ = 0, bound_ = 0;
  int64_t size_ = 0, timed_ = 0;  // instructions: of the program, and timed so far
};

}  // namespace

Status PreposeForward(Program& program, const PassContext& context) {
  PP_RETURN_IF_ERROR(CheckWholeBackwards(program, "prepose-forward"));
  return Preposer(program, context.costs).Run();
}

}  // namespace pp
