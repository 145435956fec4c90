// How a scheme writes its lists.
#include <algorithm>

#include "compiler/scheme.h"

namespace pp {

Row::Row(Program* program, int device)
    : program_(*program), device_(device), list_(program->lists[device].body) {
  micros_.resize(program->stages);
  forward_.assign(program->stages, 0);
  backward_.assign(program->stages, 0);
  for (int stage : program->StagesOf(device)) {
    stages_.push_back(stage);
    const int pipe = program->PipesOf(stage, device).front();
    for (int m = 0; m < program->microbatches; ++m)
      if (program->pipe_of[m] == pipe) micros_[stage].push_back(m);
  }
}

Instruction& Row::Add(Op op, int stage, int micro) {
  list_.push_back({.op = op, .stage = stage, .micro = micro});
  return list_.back();
}

int Row::Next(std::vector<int>& counters, int stage) { return micros_[stage][counters[stage]++]; }

Instruction& Row::F(int stage, int micro) {
  if (stage == 0 || stage == program_.stages - 1) Add(Op::kLoad, stage, micro);
  return Add(Op::kForward, stage, micro);
}

Instruction& Row::I(int stage, int micro) {
  weights_.push_back({stage, micro});
  return Add(Op::kBackwardInput, stage, micro);
}

void Row::W(int stage) {
  const auto next = std::find_if(weights_.begin(), weights_.end(),
                                 [&](const auto& waiting) { return waiting.first == stage; });
  Add(Op::kBackwardWeight, stage, next->second);
  weights_.erase(next);
}

void Row::W() { W(weights_.front().first); }

void Row::FB(int forward, int backward) {
  F(forward);
  B(backward);
  list_[list_.size() - 2].overlap = list_.back().overlap = true;
}

void Row::Reduce(int stage, int next_stage, int micro) {
  if (next_stage + 1 < program_.stages && program_.DeviceOf(next_stage + 1, micro) != device_) {
    Add(Op::kWait, next_stage, micro).value = Kind::kGrad;
  }
  Add(Op::kReduceGrad, stage, -1).bucket = 0;
}

void Row::Step(int stage) { Add(Op::kStep, stage, -1).version = 0; }

}  // namespace pp
