// reduce-gradients: what comes behind the last backwards.
//
// Tied embeddings (one matrix at both ends of the model) have a gradient on the first
// and one on the last stage's device; they are summed as soon as both are complete. Then
// the norm of all gradients is taken, block by block in model order, and every stage
// steps.
//
//   device 0 holds s0         device 0 holds s0
//     ...                       ...
//     BW        s0 m1     =>    BW        s0 m1
//                               REDUCE_tied
//                               WAIT      tied
//                               NORM_grad s0
//                               REDUCE_norm
//                               WAIT      norm
//                               STEP      s0
#include <algorithm>

#include "compiler/pass.h"

namespace pp {
namespace {

bool IsTied(const Program& program) {
  return program.job && program.job->model.tie_word_embeddings;
}

// Behind the last backward of this device that adds to a tied gradient.
size_t BehindTied(const Program& program, const std::vector<Instruction>& list) {
  for (size_t i = list.size(); i > 0; --i) {
    const Instruction& last = list[i - 1];
    const bool adds = last.op == Op::kBackward || last.op == Op::kBackwardWeight;
    if (adds && (last.stage == 0 || last.stage == program.stages - 1)) return i;
  }
  return list.size();
}

}  // namespace

Status ReduceGradients(Program& program, const PassContext&) {
  for (int device = 0; device < program.devices; ++device) {
    auto& list = program.lists[device].body;
    const std::vector<int32_t> held = program.StagesOf(device);
    const bool tied =
        IsTied(program) && (std::count(held.begin(), held.end(), 0) +
                                std::count(held.begin(), held.end(), program.stages - 1) >
                            0);
    if (tied) {
      list.insert(list.begin() + BehindTied(program, list), {.op = Op::kReduceTied});
      list.push_back({.op = Op::kWait, .value = Kind::kTied});
    }
    for (int stage : held) list.push_back({.op = Op::kNormGrad, .stage = stage});
    list.push_back({.op = Op::kReduceNorm});
    list.push_back({.op = Op::kWait, .value = Kind::kNorm});
    for (int stage : held) list.push_back({.op = Op::kStep, .stage = stage});
  }
  return {};
}

}  // namespace pp
