// Where insert-comm puts the messages of a program into its lists.
#pragma once

#include <vector>

#include "compiler/pass.h"
#include "compiler/play/ideal.h"

namespace pp {

// Instructions to insert before those of a list. The list must outlive it, unchanged.
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
  std::vector<Instruction> Merge() const;

 private:
  const std::vector<Instruction>& list_;
  std::vector<Added> added_;
};

// One for the body of each device.
std::vector<Insertions> StartInsertions(const Program& program);

// The four instructions of a message: the receiver waits before the value's use, the sender before
// it reuses the buffer.
Instruction Send(const Message& m);
Instruction Receive(const Message& m);
Instruction Wait(const Message& m);
Instruction WaitSent(const Message& m);

// The two ways (place_async.cc, place_blocking.cc). REQUIRES: `messages` as FindMessages gives
// them.
std::vector<Insertions> PlaceAsync(const Program& program, const std::vector<Message>& messages,
                                   const Spans& spans);
std::vector<Insertions> PlaceBlocking(const Program& program, const std::vector<Message>& messages,
                                      const Durations& durations);

}  // namespace pp
