// From names to addresses. A device's body is bound once, before the first step: each instruction
// gets the addresses of its values in the rank's arena, so that running it looks up nothing.
//
// A plan's sections are one stream: the body is repeated; each repetition is an *iteration*,
// counted from 1. If steps overlap (schema/sections.h) a body also has instructions of
// the next step: the first iteration executes only those (the prologue), and the last one only the
// others (the epilogue).
//
//   iteration        1     2     3          1          2          3          4
//   plain          | body| body| body     | prologue | body     | body     | epilogue
//   step             1     2     3          1          1 and 2    2 and 3    3
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "schema/program.h"
#include "schema/proof/body_walk.h"

namespace pp {

enum class BodyPart : uint8_t { kAll, kAhead, kRest };

// One pass through the body.
struct Iteration {
  int64_t number = 0;  // of this body's
  BodyPart part = BodyPart::kAll;
  int64_t others = 0;  // steps of the run before it that other routines have made
};

// A device's body, ready to run. Vectors are as long as the body.
struct BoundList {
  std::span<const Instruction> list;
  int microbatches = 0;
  bool overlaps = false;  // steps overlap
  std::vector<Dependence>
      waits_for;                  // see body_walk.h; blocking sends: also their place in the lane
  std::vector<StageCall> calls;   // of compute instructions
  std::vector<int32_t> versions;  // of its copy's weights that the device keeps
  std::vector<int64_t> weights_bytes;  // of one of them
  std::vector<int64_t> rounded_bytes;  // the same, of rounded weights
  std::vector<int32_t> steps_before;   // STEPs of its copy in the body before it
  std::vector<int32_t> steps;          // and in all of it
  std::vector<std::byte*> data;        // of SEND and RECV: where the bytes are
  std::vector<int64_t> bytes;          // and how many
  std::vector<int32_t> compute;        // what the compute lane executes, in order
  std::vector<bool> releases;          // what another lane waits for
  std::vector<Freed> freed;            // by index
  std::byte* documents = nullptr;      // Workspace::documents; null: the plan has no room for them

  bool Executes(int index, BodyPart part) const {
    if (part == BodyPart::kAll) return true;
    return (list[index].micro >= microbatches) == (part == BodyPart::kAhead);
  }
  // The step that an instruction belongs to, from 1.
  int64_t StepOf(int index, const Iteration& iteration) const {
    return iteration.number + iteration.others -
           (overlaps && list[index].micro < microbatches ? 1 : 0);
  }
  // Which of the copy's versions of the weights is `age` updates older than the newest one before
  // the instruction, or the first one if there have not been so many.
  int32_t SlotOf(int index, const Iteration& iteration, int64_t age) const;
  // Makes a call use a version.
  void UseSlot(int index, int32_t slot, StageCall* call) const;
  // Updates of its copy before it.
  int64_t Updates(int index, const Iteration& iteration) const;
};

// REQUIRES: `walk` from WalkBody(program, device).
BoundList Bind(const Program& program, int device, BodyWalk walk, const Device& memory);

// The states of one copy of a stage, and the shared parts of the device that it uses; no values.
StageCall BindStage(const Program& program, int device, int stage, int pipe, const Device& memory);

// Where the bounds of packed documents are (BoundList::documents).
std::byte* BindDocuments(const Program& program, int device, const Device& memory);

// Kernels for a rank of that place, in the plan's workspace.
std::unique_ptr<Kernels> MakeKernels(const Program& program, int device, int threads,
                                     Device* memory);

// The region of `kind`, for a copy of a stage or for the whole device; null where there is none.
// -1 in a region stands for any stage or pipe: a plan that was verified has no second one that
// matches.
const Region* FindRegion(const DeviceList& list, Kind kind, int stage, int pipe);

}  // namespace pp
