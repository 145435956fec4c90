// insert-comm: the messages between devices.
//
// If producer and user of a value are on different devices, the producer sends and the user
// receives it. All messages are placed by time, on the ideal timeline, never by position alone: a
// receive "right before its use" is wrong for V-shaped schemes, and blocking sends "right after
// their producer" deadlock even in 1F1B.
//
//   --p2p async: place_async.cc      --p2p blocking: place_blocking.cc
//
// Both show before => after. Here: which messages there are, and steps that overlap.
#include <algorithm>

#include "compiler/passes/place_messages.h"
#include "schema/sections.h"
#include "schema/text.h"

namespace pp {
namespace {

PlacedOn Place(const Program& program, const std::vector<Message>& messages,
               const Durations& durations, const Spans& spans, P2p p2p) {
  if (p2p == P2p::kAsync) return PlaceAsync(program, messages, spans);
  return PlaceBlocking(program, messages, durations);
}

// A blocking RECV is its own wait.
void DropWaits(std::vector<Instruction>& list) {
  std::erase_if(list, [](const Instruction& i) {
    return i.op == Op::kWait && (i.value == Kind::kAct || i.value == Kind::kGrad);
  });
}

Status CheckUsed(const std::vector<Message>& messages) {
  for (const Message& m : messages)
    if (m.consumer < 0)
      return Status::Invalid("device " + std::to_string(m.to) + ": nothing uses " +
                             ToText(m.value));
  return {};
}

// Steps that overlap. The program is placed as several consecutive bodies, on a clock on which a
// forward takes as long as a backward, so that it repeats itself from body to body. Every step gets
// the same messages as a step in the middle.
class OverlappingSteps {
 public:
  OverlappingSteps(const Program& program, P2p p2p)
      : program_(program), p2p_(p2p), unrolled_(Unroll(program, kBodies)) {
    for (int d = 0; d < program.devices; ++d) {
      prologues_.push_back(static_cast<size_t>(PrologueSize(program, d)));
      unrolled_.lists[d].body.resize(IndexOf(d, kBodies));  // without the epilogue
    }
  }

  Result<std::vector<Insertions>> Run() {
    std::vector<Message> messages = FindMessages(unrolled_);
    std::erase_if(messages, [](const Message& m) { return m.consumer < 0; });
    const Durations durations(
        CostModel{.f = {1}, .b = {1}, .r = {1}, .bi = {1}, .bw = {1}, .step = {0}}, unrolled_);
    const auto spans = IdealTimeline(unrolled_, messages, durations);
    if (!spans.ok()) return spans.status();
    const PlacedOn placed = Place(unrolled_, messages, durations, *spans, p2p_);
    const double period =
        spans->front()[IndexOf(0, kMiddle)].start - spans->front()[IndexOf(0, kMiddle - 1)].start;
    std::vector<Insertions> folded = StartInsertions(program_);
    for (int d = 0; d < program_.devices; ++d) Fold(d, period, placed(d).added(), &folded[d]);
    return folded;
  }

 private:
  static constexpr int kBodies = 2, kMiddle = 1;

  // Where a body begins.
  size_t IndexOf(int device, int body) const {
    return prologues_[device] + body * program_.lists[device].body.size();
  }

  // Takes what belongs to the micro-batches of step kMiddle, and places it in the body that names
  // it: its own step's, or the previous one as a micro-batch of the next step.
  void Fold(int device, double period, const std::vector<Insertions::Added>& placed,
            Insertions* folded) const {
    const int micros = program_.microbatches;
    const int length = static_cast<int>(program_.lists[device].body.size());
    std::vector<Insertions::Added> added;
    for (Insertions::Added a : placed) {
      const int micro = a.instruction.micro - kMiddle * micros;
      if (micro < 0 || micro >= micros) continue;
      const int position = a.position - static_cast<int>(IndexOf(device, kMiddle));
      const bool before = position < 0;
      a.instruction.micro = before ? micro + micros : micro;
      a.position = std::clamp(before ? position + length : position, 0, length);
      if (p2p_ == P2p::kBlocking && before) a.order += period;
      added.push_back(a);
    }
    std::stable_sort(added.begin(), added.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.position, a.order, Rank(a)) < std::tuple(b.position, b.order, Rank(b));
    });
    for (const Insertions::Added& a : added) folded->Add(a.position, a.order, a.instruction);
  }
  // Gradients first, then in the order of the micro-batches.
  static std::tuple<bool, int> Rank(const Insertions::Added& a) {
    return {KindOfMessage(a.instruction.op) == Kind::kAct, a.instruction.micro};
  }

  const Program& program_;
  const P2p p2p_;
  std::vector<size_t> prologues_;  // by device, their sizes
  Program unrolled_;
};

}  // namespace

Status InsertComm(Program& program, const PassContext& context) {
  if (context.comm) return KeepComm(program, context);
  const auto insert = [&](const PlacedOn& placed) {
    for (int d = 0; d < program.devices; ++d) {
      auto& list = program.lists[d].body;
      list = placed(d).Merge();
      if (program.p2p == P2p::kBlocking) DropWaits(list);
    }
  };
  if (program.overlaps) {
    const auto placed = OverlappingSteps(program, program.p2p).Run();
    if (!placed.ok()) return placed.status();
    insert([&](int device) { return (*placed)[device]; });
  } else {
    const std::vector<Message> messages = FindMessages(program);
    PP_RETURN_IF_ERROR(CheckUsed(messages));
    const Durations durations = PositiveDurations(context.costs, program);
    const auto spans = IdealTimeline(program, messages, durations);
    if (!spans.ok()) return spans.status();
    insert(Place(program, messages, durations, *spans, program.p2p));
  }
  return {};
}

}  // namespace pp
