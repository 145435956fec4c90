// The memory of one device: how many bytes a value has, who assigns them, and whether the offsets
// of a plan are right.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

// Bytes that a value adds on a device: by kind, stage and the shape of its micro-batch. A program
// without a model has nominal values of one byte. A stash that FW writes consists of two pieces:
// what RE would recompute, and what CFW would keep (Job::recompute), so that the pieces of both can
// have the same places.
class ValueBytes {
 public:
  // REQUIRES: `program` outlives it.
  explicit ValueBytes(const Program& program);
  int64_t operator()(const Value& v) const {
    return bytes_[static_cast<size_t>(v.kind)][At(v.stage, program_.ShapeOf(v.micro))];
  }
  int64_t SecondPiece(Op writer, const Value& v) const {
    return (writer == Op::kForward || writer == Op::kEvaluate) && v.kind == Kind::kStash
               ? (*this)({Kind::kInput, v.stage, v.micro})
               : 0;
  }

 private:
  size_t At(int stage, int shape) const { return stage * program_.shapes() + shape; }

  const Program& program_;
  std::vector<int64_t> bytes_[kKindNumbers];
};

// What the walk reports about memory. The planner chooses offsets here, the verifier checks them.
class MemoryPolicy {
 public:
  virtual ~MemoryPolicy() = default;
  // list[index] writes `value` (its writes in order: slot 0, 1, 2). Sets *offset to where,
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
