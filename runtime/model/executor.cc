#include "runtime/model/executor.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "runtime/model/operators.h"
#include "runtime/model/parameters.h"
#include "schema/semantics/buckets.h"

namespace pp {
namespace {

class ModelExecutor : public StageExecutor {
 public:
  ModelExecutor(const ExecutorArgs& args, std::unique_ptr<Kernels> kernels)
      : args_(args), job_(*args.program->job), kernels_(std::move(kernels)) {
    const Program& program = *args.program;
    norm_blocks_ = NormBlocks(job_);
    for (int stage : program.StagesOf(args.device)) {
      for (int shape = 0; shape < program.shapes(); ++shape) {
        const auto made = stages_.emplace(std::pair(stage, shape),
                                          MakeStage(job_.OfShape(shape), stage, args.seed,
                                                    kernels_.get(), {args.index, args.peers}));
        made.first->second.CountIn(args.operators);
      }
      const StageLayout& layout = stages_.at({stage, 0}).layout();
      for (int pipe : program.PipesOf(stage, args.device)) {
        owned_[{stage, pipe}] = OwnedPartsOf(program, layout, args.replica, pipe);
        stale_[{stage, pipe}].assign(Versions(layout, pipe) * layout.tensors.size(), true);
      }
    }
    FindTied();
  }

  int64_t bytes() const override { return kernels_->bytes(); }

  void Run(const StageCall& call) override {
    StageModel& stage = stages_.at({call.stage, call.shape});
    if (call.micro >= 0 && call.rounded != nullptr) RoundStale(call, stage.layout());
    switch (call.op) {
      case Op::kForward:
      case Op::kEvaluate:
        return stage.Forward(call);
      case Op::kForwardDrop:
        return stage.ForwardDrop(call);
      case Op::kRecompute:
        return stage.Recompute(call);
      case Op::kBackward:
        return stage.Backward(call);
      case Op::kBackwardInput:
        return stage.BackwardInput(call);
      case Op::kBackwardWeight:
        return stage.BackwardWeight(call);
      case Op::kNormGrad:
        return Norm(call, stage.layout());
      case Op::kStep:
        return Step(call, stage.layout());
      case Op::kLoad:
      case Op::kSendAct:
      case Op::kRecvAct:
      case Op::kSendGrad:
      case Op::kRecvGrad:
      case Op::kWait:
      case Op::kReduceGrad:
      case Op::kReduceTied:
      case Op::kReduceNorm:
      case Op::kScatterGrad:
      case Op::kGatherWeights:
        PP_CHECK(false);  // not for the executor
    }
  }

 private:
  const std::vector<OwnedPart>& Owned(const StageCall& call) const {
    return owned_.at({call.stage, call.pipe});
  }

  // How many versions of its weights the device keeps.
  int64_t Versions(const StageLayout& layout, int pipe) const {
    for (const Region& region : args_.program->lists[args_.device].regions)
      if (region.kind == Kind::kRounded && region.stage == layout.stage &&
          (region.pipe == pipe || region.pipe < 0))
        return region.bytes / layout.rounded_bytes;
    return 0;
  }

  // Whether what products read of a tensor, of this version, is to be rounded from the weights.
  std::vector<bool>::reference Stale(const StageCall& call, const StageLayout& layout,
                                     const Tensor& tensor) {
    const size_t index = &tensor - layout.tensors.data();
    return stale_.at({call.stage, call.pipe})[call.slot * layout.tensors.size() + index];
  }

  void MakeStale(const StageCall& call, const StageLayout& layout) {
    if (call.rounded == nullptr) return;
    for (const Tensor& tensor : layout.tensors)
      if (tensor.trainable()) Stale(call, layout, tensor) = true;
  }

  // What no STEP has rounded: at the start, and what other ranks have updated.
  void RoundStale(const StageCall& call, const StageLayout& layout) {
    for (const Tensor& tensor : layout.tensors) {
      if (tensor.rounded < 0 || !Stale(call, layout, tensor)) continue;
      kernels_->Round({.n = tensor.elements(),
                       .x = reinterpret_cast<const float*>(call.weights + tensor.weight),
                       .y = call.rounded + tensor.rounded,
                       .rounding = kernels_->rounding()});
      Stale(call, layout, tensor) = false;
    }
  }

  // If this rank has both ends of a tied tensor, whole, they have the same gradient, moments and
  // weights: if the first stage's STEP comes first, the last stage copies its result.
  struct Tied {
    const Tensor* ends[2] = {};      // of the first and of the last stage
    std::vector<OwnedPart> rest[2];  // what the stage has besides it
    int64_t update = 0;              // the one that made `weights`
    const std::byte* weights = nullptr;
  };

  void FindTied() {
    const int last = job_.stages() - 1;
    const bool sharded = args_.program->zero > 0 && args_.program->Copies() > 1;
    if (sharded || last == 0 || !stages_.contains({0, 0}) || !stages_.contains({last, 0})) return;
    for (size_t pipe = 0; pipe < args_.program->pipes.size(); ++pipe) {
      Tied tied;
      for (const int end : {0, 1}) {
        const StageLayout& layout = stages_.at({end * last, 0}).layout();
        const auto owned = owned_.find({end * last, pipe});
        if (owned == owned_.end() || layout.tied_bytes == 0) continue;
        const int64_t wgrad = end == 0 ? layout.tied_lookup : layout.tied_head;
        for (const OwnedPart& part : owned->second) {
          if (part.part.tensor->wgrad == wgrad) {
            tied.ends[end] = part.part.tensor;
          } else {
            tied.rest[end].push_back(part);
          }
        }
      }
      if (tied.ends[0] != nullptr && tied.ends[1] != nullptr) tied_[pipe] = std::move(tied);
    }
  }

  // What STEP must compute; the rest is copied.
  const std::vector<OwnedPart>& ToStep(const StageCall& call, const StageLayout& layout) {
    const auto found = layout.first || layout.last ? tied_.find(call.pipe) : tied_.end();
    if (found == tied_.end()) return Owned(call);
    Tied& tied = found->second;
    const int end = layout.last ? 1 : 0;
    const Tensor& tensor = *tied.ends[end];
    // The first stage's end has the moments that a checkpoint takes: it is never the copy.
    if (end == 0) {
      tied.update = call.update;
      tied.weights = call.weights + tensor.weight;
    }
    if (end == 0 || tied.update != call.update) return Owned(call);
    kernels_->Copy(tied.weights, tensor.bytes(), call.weights + tensor.weight);
    return tied.rest[end];
  }

  // Tensors that all peers have are counted once.
  void Norm(const StageCall& call, const StageLayout& layout) const {
    double* blocks = call.norm + args_.index * (norm_blocks_ / job_.tp) + layout.first_norm_block;
    SumSquares(*kernels_, Owned(call), call.wgrad, blocks);
    for (const OwnedPart& owned : Owned(call))
      if (args_.index > 0 && owned.part.tensor->cut == Cut::kNone)
        kernels_->Fill({.n = 2 * owned.part.blocks(),  // zeros as floats are zeros as doubles
                        .out = reinterpret_cast<float*>(blocks + owned.part.first_block())});
  }

  // A step whose norm is not finite changes nothing: the run ends when its report is read, or, if
  // the loss is scaled, continues with a smaller scale. Nor does one without any target, whose norm
  // is 0 and says nothing about the scale.
  void Step(const StageCall& call, const StageLayout& layout) {
    const bool updates = call.per_token > 0;
    const OptimizerOptions& chosen = args_.optimizer;
    AdamWOptions options{.beta1 = static_cast<float>(chosen.beta1),
                         .beta2 = static_cast<float>(chosen.beta2),
                         .epsilon = static_cast<float>(chosen.epsilon),
                         .weight_decay = static_cast<float>(chosen.weight_decay)};
    if (call.norm != nullptr) {
      auto* clipped = reinterpret_cast<kernels::Clipped*>(call.scratch);
      kernels_->Clip({.blocks = norm_blocks_,
                      .norm = call.norm,
                      .max_norm = chosen.grad_clip,
                      .clipped = clipped,
                      .scaling = updates ? call.scaling : nullptr,
                      .step = call.step,
                      .every = chosen.loss_scale_every,
                      .update = call.update,
                      .beta1 = options.beta1,
                      .beta2 = options.beta2});
      options.clipped = clipped;
    }
    if (call.weights != call.weights_old)
      kernels_->Copy(call.weights_old, layout.weights_bytes, call.weights);
    if (!updates) return MakeStale(call, layout);
    options.learning_rate = static_cast<float>(LearningRate(chosen, call.step));
    options.step = call.update;
    const std::vector<OwnedPart>& parts = ToStep(call, layout);
    StepAdamW(*kernels_, parts, options, {call.wgrad, call.optimizer, call.weights, call.rounded});
    MakeStale(call, layout);
    if (call.rounded == nullptr) return;
    for (const OwnedPart& owned : parts)
      if (WritesRounded(owned.part)) Stale(call, layout, *owned.part.tensor) = false;
  }

  const ExecutorArgs args_;
  const Job job_;
  const std::unique_ptr<Kernels> kernels_;
  int64_t norm_blocks_ = 0;
  std::map<std::pair<int, int>, StageModel> stages_;             // by stage and shape
  std::map<std::pair<int, int>, std::vector<OwnedPart>> owned_;  // by stage and pipe
  // By stage and pipe: of each version of each tensor; empty where products read weights in fp32.
  std::map<std::pair<int, int>, std::vector<bool>> stale_;
  std::map<int, Tied> tied_;  // by pipe
};

}  // namespace

std::unique_ptr<StageExecutor> MakeExecutor(const ExecutorArgs& args,
                                            std::unique_ptr<Kernels> kernels) {
  return std::make_unique<ModelExecutor>(args, std::move(kernels));
}

}  // namespace pp
