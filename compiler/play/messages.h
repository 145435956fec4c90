// Which values a compute-only program passes between devices, and when they arrive.
#pragma once

#include <algorithm>
#include <vector>

#include "compiler/play/follow.h"
#include "schema/program.h"

namespace pp {

// A value that one device produces and another one uses.
struct Message {
  Value value;
  int from, to;
  // List indices. Of two instructions that overlap, the second produces and the first consumes for
  // both. A WAIT for the value counts as its consumer. -1: nothing uses it.
  int producer, consumer;
};

// All messages that a compute-only program needs, in the order of their senders and, of one sender,
// in that in which they are made.
std::vector<Message> FindMessages(const Program& program);

// What each instruction still waits for while a program is played.
class Inbox {
 public:
  // REQUIRES: `messages` in the order of FindMessages; all outlive it.
  Inbox(const Program& program, const std::vector<Message>& messages);

  // When the last of the instruction's messages arrives; kNever while one has no time.
  double Ready(int device, size_t index) const {
    const Use& use = uses_[device][index];
    return use.missing > 0 ? kNever : use.ready;
  }
  // Message m arrives. Whether it is the last one of its consumer.
  bool Arrive(size_t m, double time) {
    const Message& message = messages_[m];
    if (message.consumer < 0) return false;
    Use& use = uses_[message.to][message.consumer];
    use.ready = std::max(use.ready, time);
    return --use.missing == 0;
  }
  // Calls visit(m) for each message of list[producer]. REQUIRES: a device's producers in order.
  template <typename Visit>
  void ForEachOf(int device, size_t producer, Visit visit) {
    for (size_t& m = next_[device]; m < messages_.size() && messages_[m].from == device &&
                                    messages_[m].producer == static_cast<int>(producer);
         ++m)
      visit(m);
  }

 private:
  struct Use {
    int missing = 0;   // messages without a time
    double ready = 0;  // when the last of the others arrives
  };
  const std::vector<Message>& messages_;
  std::vector<std::vector<Use>> uses_;  // by device and instruction
  std::vector<size_t> next_;            // by device: the first message that it has not made
};

}  // namespace pp
