// From names to addresses. A list is bound once, before the first step: each instruction
// gets the addresses of its values in the rank's arena, so that running it looks up nothing.
#pragma once

#include <span>
#include <vector>

#include "runtime/device/arena.h"
#include "runtime/device/backend.h"
#include "schema/program.h"
#include "schema/walk.h"

namespace pp {

// A list, ready to run.
struct BoundList {
  std::span<const Instruction> list;
  WaitsFor waits_for;                // see walk.h; blocking sends: also their place in the lane
  std::vector<Addresses> addresses;  // of compute instructions
  std::vector<std::byte*> data;      // of SEND and RECV: where the bytes are
  std::vector<int64_t> bytes;        // and how many
  std::vector<int32_t> compute;      // what the compute thread executes, in order
  // Compute instructions that a SEND, RECV or REDUCE waits for.
  std::vector<bool> releases;
};

// REQUIRES: VerifyDevice(program, device, Depth::kPlan, &waits_for).ok().
BoundList Bind(const Program& program, int device, std::span<const Instruction> list,
               WaitsFor waits_for, const Arena& arena);

// The states of one stage, and what of the device it uses; no values.
Addresses BindStage(const Program& program, int device, int stage, const Arena& arena);

// The region of `kind`, for `stage` or for the whole device; null where there is none.
const Region* FindRegion(const DeviceList& list, Kind kind, int stage);

}  // namespace pp
