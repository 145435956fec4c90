// Where insert-comm puts the messages of a program into its lists.
#pragma once

#include <functional>
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
  explicit Insertions(const std::vector<Instruction>& list, size_t expected = 0) : list_(list) {
    added_.reserve(expected);
  }

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

// What is inserted into the body of each device. Asked for one device after the other: of all of
// them it takes more memory than their lists.
using PlacedOn = std::function<Insertions(int device)>;

// The two ways (place_async.cc, place_blocking.cc). REQUIRES: `messages` as FindMessages gives
// them; they, `program` and `spans` outlive what is returned, and the list of a device that has
// been asked for may change.
PlacedOn PlaceAsync(const Program& program, const std::vector<Message>& messages,
                    const Spans& spans);
PlacedOn PlaceBlocking(const Program& program, const std::vector<Message>& messages,
                       const Durations& durations);

}  // namespace pp
