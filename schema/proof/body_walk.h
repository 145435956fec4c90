// What a device's body waits for when it is repeated without draining in between: instructions of
// its own and of the previous body.
//
//   prologue | body | body | epilogue      indices are those of the body, also in the two others:
//                ^------^ waits for        the prologue is the part of the body with micro-batches
//                                          from M on, the epilogue the part with those below M
#pragma once

#include <cstdint>
#include <vector>

#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/semantics/walk.h"

namespace pp {

// What one instruction waits for, as in WaitsFor (walk.h).
struct Dependence {
  int32_t body = 0;    // 0: of the same iteration, -1: of the one before
  int32_t index = -1;  // in the body; -1: nothing
  bool operator==(const Dependence&) const = default;
};

// After body[index] these bytes of the arena hold no value, until an instruction writes there.
struct Freed {
  int32_t index;
  int64_t offset, bytes;
};

struct BodyWalk {
  std::vector<Dependence> waits_for;  // as long as the body
  std::vector<Freed> freed;           // ascending by index
};

// Also verifies the device's lists and memory (VerifyDevice, Depth::kPlan).
Status WalkBody(const Program& program, int device, BodyWalk* out);

// What all devices wait for in `unrolled`, which has this many of the program's bodies in a row
// (Unroll in sections.h), memory included where it is planned.
Status WalkBodies(const Program& program, const Program& unrolled, int bodies,
                  std::vector<WaitsFor>* waits_for);

}  // namespace pp
