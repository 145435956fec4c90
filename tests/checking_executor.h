// An executor that computes nothing: it fills each value with a number that identifies the value
// and its step, and checks those that it reads. It detects values that another instruction has
// overwritten, that came too late, or from elsewhere.
#pragma once

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/device/stage_call.h"
#include "runtime/files/batches.h"
#include "schema/program.h"
#include "schema/semantics/memory.h"

namespace pp {

class CheckingExecutor : public StageExecutor {
 public:
  struct Args {
    const Program* program = nullptr;
    const Batches* batches = nullptr;              // what LOAD should bring
    std::function<void(const std::string&)> fail;  // any thread
    std::function<void(const StageCall&)> before;  // called before each instruction
    double loss_of_micro_1 = 2;                    // others: m + 1
  };
  explicit CheckingExecutor(const Args& args) : args_(args), bytes_(*args.program) {
    for (int stage = 0; stage < args.program->stages; ++stage)
      layouts_.push_back(LayoutStage(*args.program->job, stage));
  }

  void Run(const StageCall& call) override {
    if (args_.before) args_.before(call);
    switch (call.op) {
      case Op::kForward:
        return Forward(call);
      case Op::kBackward:
        return Backward(call);
      case Op::kNormGrad:
        return Norm(call);
      case Op::kStep:
        call.norm[NormBlocks(*args_.program->job)] = 1;
        return;
      default:  // schemes with others have their own tests of values
        args_.fail(std::string(Info(call.op).text));
    }
  }

 private:
  void Forward(const StageCall& call) {
    if (call.first_sequence == 0 && call.micro == 0) {
      std::memset(call.wgrad, 0, layouts_[call.stage].wgrad_bytes);
      std::memset(call.scratch, 0, layouts_[call.stage].scratch_bytes);
    }
    CheckInput(call);
    if (Last(call)) {
      *call.loss = call.micro == 1 ? args_.loss_of_micro_1 : call.micro + 1;
    } else {
      Fill(Kind::kAct, call.stage, call.act, call);
    }
    Fill(Kind::kStash, call.stage, call.stash, call);
  }

  void Backward(const StageCall& call) {
    CheckInput(call);
    Check(Kind::kStash, call.stage, call.stash, call);
    if (!Last(call)) Check(Kind::kGrad, call.stage, call.grad, call);
    if (call.stage > 0) Fill(Kind::kGrad, call.stage - 1, call.grad_before, call);
    // wgrad counts the micro-batches.
    auto* wgrad = reinterpret_cast<float*>(call.wgrad);
    const int64_t count = layouts_[call.stage].wgrad_bytes / 4;
    const bool first = call.accumulate == kernels::Update::kSet;
    for (int64_t i = 0; i < count; ++i) wgrad[i] = first ? 1 : wgrad[i] + 1;
  }

  void Norm(const StageCall& call) {
    const StageLayout& layout = layouts_[call.stage];
    const auto micros = static_cast<float>(args_.program->microbatches);
    const auto* wgrad = reinterpret_cast<const float*>(call.wgrad);
    for (const Tensor& tensor : layout.tensors) {
      const bool tied = tensor.wgrad == layout.tied_lookup || tensor.wgrad == layout.tied_head;
      for (int64_t i = 0; i < tensor.elements(); ++i)
        if (wgrad[tensor.wgrad / 4 + i] != (tied ? 2 : 1) * micros) {
          args_.fail("wgrad of " + tensor.name() + " is not the sum of all its parts");
          break;
        }
    }
    for (int64_t i = 0; i < layout.norm_blocks; ++i) call.norm[layout.first_norm_block + i] = 1;
  }

  bool Last(const StageCall& call) const { return call.stage == args_.program->stages - 1; }

  uint32_t Mark(Kind kind, int stage, const StageCall& call) const {
    return static_cast<uint32_t>(((call.step * 16 + static_cast<int>(kind)) * 64 + stage) * 64 +
                                 call.micro);
  }
  void Fill(Kind kind, int stage, void* to, const StageCall& call) {
    const uint32_t mark = Mark(kind, stage, call);
    for (int64_t i = 0; i < bytes_({kind, stage, call.micro}) / 4; ++i)
      std::memcpy(static_cast<std::byte*>(to) + 4 * i, &mark, sizeof mark);
  }
  void Check(Kind kind, int stage, const void* from, const StageCall& call) {
    const uint32_t mark = Mark(kind, stage, call);
    for (int64_t i = 0; i < bytes_({kind, stage, call.micro}) / 4; ++i) {
      uint32_t found = 0;
      std::memcpy(&found, static_cast<const std::byte*>(from) + 4 * i, sizeof found);
      if (found != mark) return Damaged(kind, stage, call);
    }
  }
  void Damaged(Kind kind, int stage, const StageCall& call) {
    args_.fail(std::string(Info(kind).text) + " s" + std::to_string(stage) + " m" +
               std::to_string(call.micro) + " of step " + std::to_string(call.step) +
               " is damaged");
  }
  void CheckInput(const StageCall& call) {
    std::vector<int32_t> expected(args_.program->job->tokens());
    auto same = [&](const int32_t* found) {
      return std::memcmp(found, expected.data(), expected.size() * sizeof(int32_t)) == 0;
    };
    if (call.stage == 0) {
      const bool read = args_.batches->Inputs(call.step, 0, call.micro, expected.data()).ok();
      if (!read || !same(call.tokens)) Damaged(Kind::kTokens, 0, call);
    }
    if (call.stage > 0) Check(Kind::kAct, call.stage - 1, call.act_before, call);
    if (Last(call)) {
      const bool read = args_.batches->Targets(call.step, 0, call.micro, expected.data()).ok();
      if (!read || !same(call.targets)) Damaged(Kind::kTargets, call.stage, call);
    }
  }

  const Args args_;
  const ValueBytes bytes_;
  std::vector<StageLayout> layouts_;
};

}  // namespace pp
