// How a scheme writes its lists.
#include <algorithm>

#include "compiler/scheme.h"

namespace pp {

Row::Row(Program* program, const Placement& placement, int device)
    : program_(*program), device_(device), list_(program->lists[device].body) {
  for (const auto [stage, pipe] : placement.On(device)) {
    if (!stages_.empty() && stages_.back() == stage) continue;  // the first pipe's
    stages_.push_back(stage);
    std::vector<int>& micros = micros_.emplace_back();
    for (int m = 0; m < program->microbatches; ++m)
      if (program->pipe_of[m] == pipe) micros.push_back(m);
  }
  forward_.assign(stages_.size(), 0);
  backward_.assign(stages_.size(), 0);
}

Instruction& Row::Add(Op op, int stage, int micro) {
  list_.push_back({.op = op, .stage = stage, .micro = micro});
  return list_.back();
}

int Row::Next(std::vector<int>& counters, int stage) {
  const size_t at = std::lower_bound(stages_.begin(), stages_.end(), stage) - stages_.begin();
  return micros_[at][counters[at]++];
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

void AddLoads(Program& program) {
  for (DeviceList& device : program.lists) {
    const std::vector<Instruction>& body = device.body;
    const auto loads = [&](const Instruction& i) {
      return (i.op == Op::kForward || i.op == Op::kForwardDrop) &&
             (i.stage == 0 || i.stage == program.stages - 1);
    };
    const auto count = std::count_if(body.begin(), body.end(), loads);
    if (count == 0) continue;
    const std::vector<bool> first_half = FirstHalves(body);
    std::vector<Instruction> list;
    list.reserve(body.size() + count);
    for (size_t k = 0; k < body.size(); ++k) {
      const Instruction& i = body[k];
      if (loads(i)) {
        const bool inside = k > 0 && first_half[k - 1];  // nothing may separate two that overlap
        list.insert(list.end() - inside, {.op = Op::kLoad, .stage = i.stage, .micro = i.micro});
      }
      list.push_back(i);
    }
    device.body = std::move(list);
  }
}

}  // namespace pp
