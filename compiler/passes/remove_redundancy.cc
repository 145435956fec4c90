// remove-redundancy: the third of Mario's passes (Liu et al., 2025, section 4.1). A forward whose
// recompute is the next thing that its device computes saves no memory by dropping; it becomes a
// plain forward.
//
//   CFW       s1 m0              FW        s1 m0
//   RE        s1 m0        =>    BW        s1 m0
//   BW        s1 m0
#include "compiler/pass.h"
#include "compiler/passes/schedule.h"

namespace pp {

Status RemoveRedundancy(Program& program, const PassContext&) {
  PP_RETURN_IF_ERROR(CheckWholeBackwards(program, "remove-redundancy"));
  for (DeviceList& device : program.lists) {
    std::vector<Instruction> list;
    Instruction* last = nullptr;  // the last that computes
    list.reserve(device.body.size());
    for (const Instruction& i : device.body) {
      if (last != nullptr && last->op == Op::kForwardDrop && i.op == Op::kRecompute &&
          last->stage == i.stage && last->micro == i.micro) {
        last->op = Op::kForward;
        continue;
      }
      list.push_back(i);
      if (IsCompute(i)) last = &list.back();
    }
    device.body = std::move(list);
  }
  return {};
}

}  // namespace pp
