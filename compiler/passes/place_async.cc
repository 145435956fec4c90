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

}  // namespace

std::vector<Insertions> PlaceAsync(const Program& program, const std::vector<Message>& messages,
                                   const Spans& spans) {
  // Nothing may separate two instructions that overlap.
  std::vector<std::vector<bool>> first_half;
  for (const DeviceList& list : program.lists) first_half.push_back(FirstHalves(list.body));
  // Where each message is received; on a channel never after a later message.
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
  // At one position: sends, then receives, then ends of sends, then waits. A receive must not come
  // after the end of a send there, whose buffer it might get: two devices that exchange values
  // would wait for each other.
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

}  // namespace pp
