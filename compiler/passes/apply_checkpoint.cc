// apply-checkpoint: the first of Mario's passes (Liu et al., 2025, section 4.1). Every forward
// keeps only its input, and is run again right before its backward, when the gradient has arrived;
// so at most one activation is alive at any time.
//
//   device 0 holds s0         device 0 holds s0
//     FW        s0 m0           CFW       s0 m0
//     FW        s0 m1           CFW       s0 m1
//     BW        s0 m0     =>    WAIT      grad s0 m0
//     BW        s0 m1           RE        s0 m0
//                               BW        s0 m0
//                               WAIT      grad s0 m1
//                               RE        s0 m1
//                               BW        s0 m1
#include <set>

#include "compiler/pass.h"
#include "compiler/passes/schedule.h"

namespace pp {
namespace {

// Whether the gradient that a backward takes comes from another device.
bool Arrives(const Program& program, int device, const Instruction& backward) {
  const int next = backward.stage + 1;
  return next < program.stages && program.DeviceOf(next, backward.micro) != device;
}

// Whether the list waits for it already, right before (with only reductions between).
bool Waits(const std::vector<Instruction>& list, const Instruction& backward) {
  for (auto i = list.rbegin(); i != list.rend() && !IsCompute(*i); ++i)
    if (i->op == Op::kWait && i->value == Kind::kGrad && i->stage == backward.stage &&
        i->micro == backward.micro)
      return true;
  return false;
}

}  // namespace

Status ApplyCheckpoint(Program& program, const PassContext&) {
  PP_RETURN_IF_ERROR(CheckWholeBackwards(program, "apply-checkpoint"));
  for (int device = 0; device < program.devices; ++device) {
    std::vector<Instruction> list;
    std::set<std::pair<int, int>> dropped;  // stage and micro-batch; others have their recompute
    for (Instruction i : program.lists[device].body) {
      if (i.op == Op::kForward) {
        i.op = Op::kForwardDrop;
        dropped.insert({i.stage, i.micro});
      } else if (i.op == Op::kBackward && dropped.contains({i.stage, i.micro})) {
        if (Arrives(program, device, i) && !Waits(list, i))
          list.push_back(
              {.op = Op::kWait, .value = Kind::kGrad, .stage = i.stage, .micro = i.micro});
        list.push_back({.op = Op::kRecompute, .stage = i.stage, .micro = i.micro});
      }
      list.push_back(i);
    }
    program.lists[device].body = std::move(list);
  }
  return {};
}

}  // namespace pp
