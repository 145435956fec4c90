// insert-comm: the messages between devices.
//
// Where maker and user of a value are on different devices, the maker sends and the user
// receives it. All messages are placed by time, on the ideal timeline, never by position
// alone: a receive "right before its use" is wrong for V-shaped schemes, and blocking
// sends "right behind their producer" deadlock even in 1F1B.
//
// Asynchronous. SEND stands behind its producer. RECV stands in front of the first
// instruction that is not yet over when the value is made, so that the message can
// travel while that one computes; this is also the order of the sends, which is all that
// a channel promises. WAIT stands in front of the use; the sender's WAIT ... sent, behind
// which its buffer may be reused, one instruction later than the value's use on the other
// side, so that a message may be late by one instruction without holding up its sender.
//
//   device 1 holds s1         device 1 holds s1
//     FW        s1 m0    =>     RECV_act  s0 m0 from d0
//     BW        s1 m0           WAIT      act s0 m0
//                               FW        s1 m0
//                               BW        s1 m0
//                               SEND_grad s0 m0 to d0
//                               WAIT      grad s0 m0 sent
//
// Blocking. A SEND and its RECV are one meeting. The program is played through in time;
// a message is handed over at the first instant at which both devices stand between
// compute instructions, gradients first, lower pair first. Both ends are put down at that
// instant, so that the lists follow one order of time and cannot deadlock.
#include <algorithm>
#include <map>
#include <queue>

#include "compiler/ideal.h"
#include "compiler/pass.h"
#include "schema/sections.h"
#include "schema/text.h"

namespace pp {
namespace {

Instruction Send(const Message& m) {
  return {.op = m.value.kind == Kind::kAct ? Op::kSendAct : Op::kSendGrad,
          .stage = m.value.stage,
          .micro = m.value.micro,
          .peer = m.to};
}
Instruction Receive(const Message& m) {
  return {.op = m.value.kind == Kind::kAct ? Op::kRecvAct : Op::kRecvGrad,
          .stage = m.value.stage,
          .micro = m.value.micro,
          .peer = m.from};
}
Instruction Wait(const Message& m) {
  return {.op = Op::kWait, .value = m.value.kind, .stage = m.value.stage, .micro = m.value.micro};
}
Instruction WaitSent(const Message& m) {
  Instruction i = Wait(m);
  i.sent = true;
  return i;
}

// Instructions to be put in front of those of a list.
class Insertions {
 public:
  struct Added {
    int position;
    double order;  // at one position
    Instruction instruction;
  };
  explicit Insertions(const std::vector<Instruction>& list) : list_(list) {}

  void Add(int position, double order, const Instruction& i) {
    added_.push_back({position, order, i});
  }
  std::vector<Added>& added() { return added_; }

  // In the order of position and, at one position, of Add.
  std::vector<Instruction> Merge() const {
    // begin[p]: where what is added at p, and then list_[p], goes.
    std::vector<int> begin(list_.size() + 2, 0);
    for (const Added& added : added_) ++begin[added.position + 1];
    for (size_t p = 1; p < begin.size(); ++p) begin[p] += begin[p - 1] + (p <= list_.size());
    std::vector<Instruction> merged(list_.size() + added_.size());
    for (size_t p = 0; p < list_.size(); ++p) merged[begin[p + 1] - 1] = list_[p];
    for (const Added& added : added_) merged[begin[added.position]++] = added.instruction;
    return merged;
  }

 private:
  const std::vector<Instruction>& list_;
  std::vector<Added> added_;
};

std::vector<Insertions> StartInsertions(const Program& program) {
  std::vector<Insertions> insertions;
  for (const DeviceList& list : program.lists) insertions.emplace_back(list.body);
  return insertions;
}

using Spans = std::vector<std::vector<Span>>;

// The first instruction of a device that ends after `time`; times ascend along a list.
int FirstEndingAfter(const std::vector<Span>& spans, double time) {
  return static_cast<int>(
      std::upper_bound(spans.begin(), spans.end(), time,
                       [](double t, const Span& span) { return t < span.end; }) -
      spans.begin());
}
int FirstStartingFrom(const std::vector<Span>& spans, double time) {
  return static_cast<int>(
      std::lower_bound(spans.begin(), spans.end(), time,
                       [](const Span& span, double t) { return span.start < t; }) -
      spans.begin());
}

std::vector<Insertions> PlaceAsync(const Program& program, const std::vector<Message>& messages,
                                   const Spans& spans) {
  // Nothing comes between two instructions that overlap.
  std::vector<std::vector<bool>> first_half;
  for (const DeviceList& list : program.lists) first_half.push_back(FirstHalves(list.body));
  // Where each message is received; on a channel never behind a later message.
  std::vector<int> receive_at(messages.size());
  std::map<std::pair<int, int>, int> latest;
  for (size_t m = messages.size(); m-- > 0;) {
    const Message& message = messages[m];
    const double made = spans[message.from][message.producer].end;
    int at = std::min(FirstEndingAfter(spans[message.to], made), message.consumer);
    if (at > 0 && first_half[message.to][at - 1]) --at;
    const auto [later, first] = latest.try_emplace({message.from, message.to}, at);
    if (!first) at = later->second = std::min(at, later->second);
    receive_at[m] = at;
  }
  // At one position: sends, then receives, then ends of sends, then waits. A receive must
  // not stand behind the end of a send there, whose buffer it might get: two devices that
  // exchange values would wait for each other.
  enum Order { kSend, kReceive, kWaitSent, kWait };
  std::vector<Insertions> insertions = StartInsertions(program);
  for (const Message& m : messages) insertions[m.from].Add(m.producer + 1, kSend, Send(m));
  for (size_t m = 0; m < messages.size(); ++m)
    insertions[messages[m].to].Add(receive_at[m], kReceive, Receive(messages[m]));
  for (const Message& m : messages) {
    const std::vector<Span>& sender = spans[m.from];
    const int last = static_cast<int>(sender.size());
    int used = std::max(FirstStartingFrom(sender, spans[m.to][m.consumer].start), m.producer + 1);
    while (used < last && sender[used].end <= sender[used].start) ++used;  // LOAD takes no time
    const int at = std::min(used + 1, last);
    const bool inside = first_half[m.from][at - 1];
    insertions[m.from].Add(at + inside, kWaitSent, WaitSent(m));
  }
  for (const Message& m : messages)
    if (program.lists[m.to].body[m.consumer].op != Op::kWait)
      insertions[m.to].Add(m.consumer, kWait, Wait(m));
  return insertions;
}

// Plays the program through in time and hands messages over when both devices are free.
class Meetings {
 public:
  Meetings(const Program& program, const std::vector<Message>& messages, const Durations& durations)
      : program_(program),
        messages_(messages),
        durations_(durations),
        insertions_(StartInsertions(program)),
        devices_(program.devices) {
    for (int d = 0; d < program.devices; ++d)
      devices_[d].missing.assign(program.lists[d].body.size(), 0);
    for (size_t m = messages.size(); m-- > 0;) {
      if (messages[m].consumer >= 0) ++devices_[messages[m].to].missing[messages[m].consumer];
      devices_[messages[m].from].next_message = m;
    }
  }

  std::vector<Insertions> Run() {
    std::vector<int> free;  // devices that may hand over or start at this instant
    for (int d = 0; d < program_.devices; ++d) free.push_back(d);
    while (true) {
      HandOver(free);
      for (int d : free) Start(d);
      free.clear();
      if (events_.empty()) return std::move(insertions_);
      now_ = events_.top().first;
      while (!events_.empty() && events_.top().first <= now_ * (1 + kSameTime)) {
        Finish(events_.top().second);
        free.push_back(events_.top().second);
        events_.pop();
      }
    }
  }

 private:
  static constexpr double kSameTime = 1e-9;  // sums of the same durations in another order
  struct Device {
    size_t next = 0;
    bool computing = false;
    size_t next_message = SIZE_MAX;  // the first that it has not made
    std::vector<int> missing;        // by instruction: messages that have not come
    std::vector<int> pending;        // messages that it has made or needs, and that are ready
  };
  using Event = std::pair<double, int>;

  // Everything that can be handed over by or to the devices `free`, which grows by the
  // partners.
  void HandOver(std::vector<int>& free) {
    std::vector<int> now;
    for (int d : free)
      for (int m : devices_[d].pending)
        if (!devices_[messages_[m].from].computing && !devices_[messages_[m].to].computing)
          now.push_back(m);
    std::sort(now.begin(), now.end(), [&](int a, int b) { return Rank(a) < Rank(b); });
    now.erase(std::unique(now.begin(), now.end()), now.end());
    for (int m : now) {
      const Message& message = messages_[m];
      insertions_[message.from].Add(static_cast<int>(devices_[message.from].next), now_,
                                    Send(message));
      insertions_[message.to].Add(static_cast<int>(devices_[message.to].next), now_,
                                  Receive(message));
      if (message.consumer >= 0) --devices_[message.to].missing[message.consumer];
      for (int d : {message.from, message.to}) {
        std::erase(devices_[d].pending, m);
        free.push_back(d);
      }
    }
  }
  std::tuple<bool, int, int> Rank(int m) const {
    const Message& message = messages_[m];
    return {message.value.kind != Kind::kGrad, std::min(message.from, message.to), m};
  }

  void Start(int d) {
    Device& device = devices_[d];
    const auto& list = program_.lists[d].body;
    if (device.computing || device.next == list.size() || device.missing[device.next] > 0) return;
    if (WaitsForOthers(list[device.next]) && !device.pending.empty()) return;
    device.computing = true;
    events_.push({now_ + ComputeTime(list, device.next, durations_), d});
  }

  // The end of a reduction may hang on what the device still has to hand over.
  static bool WaitsForOthers(const Instruction& i) {
    return i.op == Op::kWait && i.value != Kind::kAct && i.value != Kind::kGrad;
  }

  void Finish(int d) {
    Device& device = devices_[d];
    device.computing = false;
    if (program_.lists[d].body[device.next].overlap) ++device.next;
    const int done = static_cast<int>(device.next++);
    // messages_ is in the order of devices and, on one, of producers.
    for (size_t& m = device.next_message;
         m < messages_.size() && messages_[m].from == d && messages_[m].producer == done; ++m) {
      device.pending.push_back(static_cast<int>(m));
      devices_[messages_[m].to].pending.push_back(static_cast<int>(m));
    }
  }

  const Program& program_;
  const std::vector<Message>& messages_;
  const Durations& durations_;
  std::vector<Insertions> insertions_;
  std::vector<Device> devices_;
  double now_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

std::vector<Insertions> Place(const Program& program, const std::vector<Message>& messages,
                              const Durations& durations, const Spans& spans, P2p p2p) {
  if (p2p == P2p::kAsync) return PlaceAsync(program, messages, spans);
  return Meetings(program, messages, durations).Run();
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

// Steps that overlap. The program is placed as several bodies one behind the other, on a clock
// on which a forward takes as long as a backward, so that it repeats itself from body to body.
// What the messages of a step in the middle get is what every step gets.
class OverlappingSteps {
 public:
  OverlappingSteps(const Program& program, P2p p2p) : program_(program), p2p_(p2p) {
    Program plain = program;
    for (DeviceList& list : plain.lists) list.epilogue.clear();
    unrolled_ = Unroll(plain, kBodies);
  }

  Result<std::vector<Insertions>> Run() {
    std::vector<Message> messages = FindMessages(unrolled_);
    std::erase_if(messages, [](const Message& m) { return m.consumer < 0; });
    const Durations durations(
        CostModel{.f = {1}, .b = {1}, .r = {1}, .bi = {1}, .bw = {1}, .step = {0}}, unrolled_);
    const auto spans = IdealTimeline(unrolled_, messages, durations);
    if (!spans.ok()) return spans.status();
    std::vector<Insertions> placed = Place(unrolled_, messages, durations, *spans, p2p_);
    const double period =
        spans->front()[IndexOf(0, kMiddle + 1)].start - spans->front()[IndexOf(0, kMiddle)].start;
    std::vector<Insertions> folded = StartInsertions(program_);
    for (int d = 0; d < program_.devices; ++d) Fold(d, period, placed[d].added(), &folded[d]);
    return folded;
  }

 private:
  static constexpr int kBodies = 5, kMiddle = 2;

  // Where a body begins.
  size_t IndexOf(int device, int body) const {
    const DeviceList& list = program_.lists[device];
    return list.prologue.size() + body * list.body.size();
  }

  // Takes what belongs to the micro-batches of the step kMiddle, and gives it its place in the
  // body that names it: its own step's, or the one before as a micro-batch of the next step.
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
    const bool act = a.instruction.op == Op::kSendAct || a.instruction.op == Op::kRecvAct;
    return {act, a.instruction.micro};
  }

  const Program& program_;
  const P2p p2p_;
  Program unrolled_;
};

}  // namespace

Status InsertComm(Program& program, const PassContext& context) {
  if (context.comm) return KeepComm(program, context);
  std::vector<Insertions> insertions;
  if (HasSections(program)) {
    auto placed = OverlappingSteps(program, context.p2p).Run();
    if (!placed.ok()) return placed.status();
    insertions = std::move(*placed);
  } else {
    const std::vector<Message> messages = FindMessages(program);
    PP_RETURN_IF_ERROR(CheckUsed(messages));
    const Durations durations = PositiveDurations(context.costs, program);
    const auto spans = IdealTimeline(program, messages, durations);
    if (!spans.ok()) return spans.status();
    insertions = Place(program, messages, durations, *spans, context.p2p);
  }
  program.p2p = context.p2p;
  for (int d = 0; d < program.devices; ++d) {
    auto& list = program.lists[d].body;
    list = insertions[d].Merge();
    if (context.p2p == P2p::kBlocking) DropWaits(list);
  }
  DeriveSections(program);
  return {};
}

}  // namespace pp
