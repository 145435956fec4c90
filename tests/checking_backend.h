// A backend that computes nothing: it fills each value with a number that tells which value
// of which step it is, and checks those that it reads. What another instruction wrote over,
// what came too late, or from elsewhere, is found.
#pragma once

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/device/backend.h"
#include "schema/program.h"
#include "schema/walk.h"

namespace pp {

class CheckingBackend : public Backend {
 public:
  struct Args {
    const Program* program = nullptr;
    std::function<void(const std::string&)> fail;  // any thread
    // Called before each instruction.
    std::function<void(Op op, const Addresses& at, int64_t step)> before;
    double loss_of_micro_1 = 2;  // others: m + 1
  };
  explicit CheckingBackend(const Args& args) : args_(args), bytes_(*args.program) {
    for (int stage = 0; stage < args.program->stages; ++stage)
      layouts_.push_back(LayoutStage(*args.program->job, stage));
  }

  Status Init(const Addresses& at) override {
    const StageLayout& layout = layouts_[at.stage];
    std::memset(at.weights, 0, layout.weights_bytes);
    std::memset(at.optimizer, 0, layout.optimizer_bytes);
    std::memset(at.wgrad, 0, layout.wgrad_bytes);
    std::memset(at.scratch, 0, layout.scratch_bytes);
    return {};
  }

  Status Load(const Addresses& at, int64_t step) override {
    Before(Op::kLoad, at, step);
    if (at.stage == 0) Fill(Kind::kTokens, 0, at.tokens, at, step);
    if (Last(at)) Fill(Kind::kTargets, at.stage, at.targets, at, step);
    return {};
  }

  void Forward(const Addresses& at, int64_t step) override {
    Before(Op::kForward, at, step);
    CheckInput(at, step);
    if (Last(at)) {
      *at.loss = at.micro == 1 ? args_.loss_of_micro_1 : at.micro + 1;
    } else {
      Fill(Kind::kAct, at.stage, at.act, at, step);
    }
    Fill(Kind::kStash, at.stage, at.stash, at, step);
  }

  void Backward(const Addresses& at, int64_t step) override {
    Before(Op::kBackward, at, step);
    CheckInput(at, step);
    Check(Kind::kStash, at.stage, at.stash, at, step);
    if (!Last(at)) Check(Kind::kGrad, at.stage, at.grad, at, step);
    if (at.stage > 0) Fill(Kind::kGrad, at.stage - 1, at.grad_before, at, step);
    // wgrad counts the micro-batches.
    auto* wgrad = reinterpret_cast<float*>(at.wgrad);
    const int64_t count = layouts_[at.stage].wgrad_bytes / 4;
    for (int64_t i = 0; i < count; ++i) wgrad[i] = at.first ? 1 : wgrad[i] + 1;
  }

  void NormGrad(const Addresses& at) override {
    Before(Op::kNormGrad, at, 0);
    const StageLayout& layout = layouts_[at.stage];
    const auto micros = static_cast<float>(args_.program->microbatches);
    const auto* wgrad = reinterpret_cast<const float*>(at.wgrad);
    for (const Tensor& tensor : layout.tensors) {
      const bool tied = tensor.wgrad == layout.tied_lookup || tensor.wgrad == layout.tied_head;
      for (int64_t i = 0; i < tensor.elements(); ++i)
        if (wgrad[tensor.wgrad / 4 + i] != (tied ? 2 : 1) * micros) {
          args_.fail("wgrad of " + tensor.name + " is not the sum of all its parts");
          break;
        }
    }
    for (int64_t i = 0; i < layout.norm_blocks; ++i) at.norm[i] = 1;
  }

  void Step(const Addresses& at, const StepArgs& args) override {
    Before(Op::kStep, at, args.step);
    const double norm = std::sqrt(static_cast<double>(NormBlocks(*args_.program->job)));
    if (args.gradient_scale != 1 / (norm + 1e-6)) args_.fail("wrong clipping at STEP");
  }

  // Schemes with these have their own tests of values.
  void ForwardDrop(const Addresses&, int64_t) override { args_.fail("CFW"); }
  void Recompute(const Addresses&, int64_t) override { args_.fail("RE"); }
  void BackwardInput(const Addresses&, int64_t) override { args_.fail("BW_input"); }
  void BackwardWeight(const Addresses&, int64_t) override { args_.fail("BW_weight"); }

 private:
  bool Last(const Addresses& at) const { return at.stage == args_.program->stages - 1; }
  void Before(Op op, const Addresses& at, int64_t step) {
    if (args_.before) args_.before(op, at, step);
  }

  uint32_t Mark(Kind kind, int stage, const Addresses& at, int64_t step) const {
    return static_cast<uint32_t>(((step * 16 + static_cast<int>(kind)) * 64 + stage) * 64 +
                                 at.micro);
  }
  void Fill(Kind kind, int stage, std::byte* to, const Addresses& at, int64_t step) {
    const uint32_t mark = Mark(kind, stage, at, step);
    for (int64_t i = 0; i < bytes_(kind, stage) / 4; ++i)
      std::memcpy(to + 4 * i, &mark, sizeof mark);
  }
  void Check(Kind kind, int stage, const std::byte* from, const Addresses& at, int64_t step) {
    const uint32_t mark = Mark(kind, stage, at, step);
    for (int64_t i = 0; i < bytes_(kind, stage) / 4; ++i) {
      uint32_t found = 0;
      std::memcpy(&found, from + 4 * i, sizeof found);
      if (found == mark) continue;
      args_.fail(std::string(Info(kind).text) + " s" + std::to_string(stage) + " m" +
                 std::to_string(at.micro) + " of step " + std::to_string(step) + " is damaged");
      return;
    }
  }
  void CheckInput(const Addresses& at, int64_t step) {
    if (at.stage == 0) Check(Kind::kTokens, 0, at.tokens, at, step);
    if (at.stage > 0) Check(Kind::kAct, at.stage - 1, at.act_before, at, step);
    if (Last(at)) Check(Kind::kTargets, at.stage, at.targets, at, step);
  }

  const Args args_;
  const ValueBytes bytes_;
  std::vector<StageLayout> layouts_;
};

}  // namespace pp
