// insert-comm --p2p async.
//
// SEND comes right after its producer. RECV comes before the first instruction that is not yet over
// when the value is produced, so that the message can travel during that instruction; this is also
// the order of the sends, which is all that a channel guarantees. WAIT comes before the use. The
// sender's WAIT ... sent, after which its buffer may be reused, comes one instruction later than
// the value's use on the other side, so that a message can be late by one instruction without
// delaying its sender.
//
//   device 1 holds s1         device 1 holds s1
//     FW        s1 m0    =>     RECV_act  s0 m0 from d0
//     BW        s1 m0           WAIT      act s0 m0
//                               FW        s1 m0
//                               BW        s1 m0
//                               SEND_grad s0 m0 to d0
//                               WAIT      grad s0 m0 sent
#include <algorithm>
#include <map>

#include "compiler/passes/place_messages.h"

namespace pp {
namespace {

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

class Placer {
 public:
  Placer(const Program& program, const std::vector<Message>& messages, const Spans& spans)
      : program_(program),
        messages_(messages),
        spans_(spans),
        receive_at_(messages.size()),
        from_(program.devices),
        to_(program.devices) {
    // Nothing may separate two instructions that overlap.
    for (const DeviceList& list : program.lists) first_half_.push_back(FirstHalves(list.body));
    for (size_t m = 0; m < messages.size(); ++m) {
      from_[messages[m].from].push_back(static_cast<int32_t>(m));
      to_[messages[m].to].push_back(static_cast<int32_t>(m));
    }
    FindReceives();
  }

  Insertions operator()(int device) const {
    // At one position: sends, then receives, then ends of sends, then waits. A receive must not
    // come after the end of a send there, whose buffer it might get: two devices that exchange
    // values would wait for each other.
    enum Order { kSend, kReceive, kWaitSent, kWait };
    const std::vector<Instruction>& list = program_.lists[device].body;
    Insertions insertions(list, 2 * (from_[device].size() + to_[device].size()));
    for (const int32_t m : from_[device])
      insertions.Add(messages_[m].producer + 1, kSend, Send(messages_[m]));
    for (const int32_t m : to_[device])
      insertions.Add(receive_at_[m], kReceive, Receive(messages_[m]));
    for (const int32_t m : from_[device])
      insertions.Add(SentAt(messages_[m]), kWaitSent, WaitSent(messages_[m]));
    for (const int32_t m : to_[device])
      if (list[messages_[m].consumer].op != Op::kWait)
        insertions.Add(messages_[m].consumer, kWait, Wait(messages_[m]));
    return insertions;
  }

 private:
  // Where each message is received; on a channel never after a later message.
  void FindReceives() {
    std::map<std::pair<int, int>, int> latest;
    for (size_t m = messages_.size(); m-- > 0;) {
      const Message& message = messages_[m];
      const double made = spans_[message.from][message.producer].end;
      int at = std::min(FirstEndingAfter(spans_[message.to], made), message.consumer);
      if (at > 0 && first_half_[message.to][at - 1]) --at;
      const auto [later, first] = latest.try_emplace({message.from, message.to}, at);
      if (!first) at = later->second = std::min(at, later->second);
      receive_at_[m] = at;
    }
  }

  // Where its sender waits for the end of the send.
  int SentAt(const Message& m) const {
    const std::vector<Span>& sender = spans_[m.from];
    const int last = static_cast<int>(sender.size());
    int used = std::max(FirstStartingFrom(sender, spans_[m.to][m.consumer].start), m.producer + 1);
    while (used < last && sender[used].end <= sender[used].start) ++used;  // LOAD takes no time
    const int at = std::min(used + 1, last);
    return at + first_half_[m.from][at - 1];
  }

  const Program& program_;
  const std::vector<Message>& messages_;
  const Spans& spans_;
  std::vector<std::vector<bool>> first_half_;    // by device and instruction
  std::vector<int> receive_at_;                  // by message
  std::vector<std::vector<int32_t>> from_, to_;  // by device: messages
};

}  // namespace

PlacedOn PlaceAsync(const Program& program, const std::vector<Message>& messages,
                    const Spans& spans) {
  return Placer(program, messages, spans);
}

}  // namespace pp
