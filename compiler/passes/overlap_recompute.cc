// overlap-recompute: the second of Mario's passes (Liu et al., 2025, section 4.1). A recompute
// needs nothing from other devices, so it need not wait for the gradient: it moves directly before
// that WAIT, and runs while the next device computes the gradient.
//
//   WAIT      grad s0 m0         RE        s0 m0
//   RE        s0 m0        =>    WAIT      grad s0 m0
//   BW        s0 m0              BW        s0 m0
#include <algorithm>

#include "compiler/pass.h"
#include "compiler/passes/schedule.h"

namespace pp {

Status OverlapRecompute(Program& program, const PassContext&) {
  PP_RETURN_IF_ERROR(CheckWholeBackwards(program, "overlap-recompute"));
  for (DeviceList& device : program.lists) {
    auto& list = device.body;
    for (auto recompute = list.begin(); recompute != list.end(); ++recompute) {
      if (recompute->op != Op::kRecompute) continue;
      auto to = recompute;
      for (auto i = recompute; i != list.begin() && !IsCompute(*std::prev(i));) {
        --i;
        if (i->op == Op::kWait && i->value == Kind::kGrad && i->stage == recompute->stage &&
            i->micro == recompute->micro)
          to = i;
      }
      std::rotate(to, recompute, recompute + 1);
    }
  }
  return {};
}

}  // namespace pp
