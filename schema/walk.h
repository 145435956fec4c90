// One device's list, walked once in order: is every value written before it is read,
// and read once; is every accumulator closed before it is used; and what has each
// instruction to wait for. Verifier, memory planner, simulator and interpreter all walk
// with this one function, so that they agree.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "schema/program.h"
#include "schema/status.h"

namespace pp {

// How far a program has been lowered.
enum class Depth {
  kSchedule,  // compute instructions only; what other devices make is simply there
  kLists,     // with communication, reductions and steps
  kPlan,      // with memory
};

// Bytes that a value adds on a device, by kind and stage. A program without a model has
// nominal values of one byte.
class ValueBytes {
 public:
  explicit ValueBytes(const Program& program);
  int64_t operator()(Kind kind, int stage) const {
    return bytes_[static_cast<size_t>(kind)][stage];
  }

 private:
  std::vector<int64_t> bytes_[16];
};

// What the walk tells of memory. The planner chooses offsets here, the verifier checks
// them.
class MemoryPolicy {
 public:
  virtual ~MemoryPolicy() = default;
  // list[index] writes `value` (its writes in order: slot 0, 1). Sets *offset to where,
  // and *last_use to the last compute instruction that used any of these bytes (-1:
  // none in this list).
  struct Claim {
    Value value;
    int64_t bytes;
    int index;
    int slot;
  };
  virtual Status Take(const Claim& claim, int64_t* offset, int32_t* last_use) = 0;
  // list[index] was the last to use them.
  virtual void Free(int64_t offset, int64_t bytes, int index) = 0;
};

// What one list waits for; as long as the list.
//   SEND, RECV, REDUCE: the last compute-lane instruction (an index) that must be over
//     before it may start: the one that wrote what it reads, or that still used the
//     bytes it writes; -1 where there is none.
//   WAIT: the SEND, RECV or REDUCE (an index) that must be over.
//   all others: -1; they only wait for their lane.
using WaitsFor = std::vector<int32_t>;

struct WalkArgs {
  Depth depth = Depth::kLists;
  MemoryPolicy* memory = nullptr;     // REQUIRED for kPlan
  const ValueBytes* bytes = nullptr;  // REQUIRED with memory
  WaitsFor* waits_for = nullptr;
};

// REQUIRES: fields of all instructions are in range (Load and Parse see to that).
// Errors say "device D, 'TEXT' (instruction I): what is wrong".
Status WalkList(const Program& program, int device, std::span<const Instruction> list,
                const WalkArgs& args);

// Checks offsets that a plan already has: inside the arena, no two live values on the
// same bytes. For WalkArgs::memory.
class MemoryCheck : public MemoryPolicy {
 public:
  MemoryCheck(const Program& program, int device, std::span<const Instruction> list);
  ~MemoryCheck() override;
  Status Take(const Claim& claim, int64_t* offset, int32_t* last_use) override;
  void Free(int64_t offset, int64_t bytes, int index) override;

 private:
  struct Blocks;
  std::unique_ptr<Blocks> blocks_;
};

}  // namespace pp
