#include "runtime/device/cpu_backend.h"

#include <omp.h>

#include <cstring>
#include <map>

#include "runtime/model/parameters.h"
#include "runtime/model/transformer.h"

namespace pp {
namespace {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const CpuBackendArgs& args)
      : args_(args), job_(*args.program->job), workspace_(args.threads) {
    for (int stage : args.program->StagesOf(args.device))
      stages_.emplace(std::piecewise_construct, std::forward_as_tuple(stage),
                      std::forward_as_tuple(job_, stage, args.seed, &workspace_));
  }

  Status Init(const Addresses& at) override {
    const StageLayout& layout = Stage(at).layout();
    std::memset(at.optimizer, 0, layout.optimizer_bytes);
    if (!args_.weights.empty()) return LoadWeights(layout, args_.weights, at.weights);
    InitWeights(layout, args_.seed, at.weights);
    return {};
  }

  Status Load(const Addresses& at, int64_t step) override {
    const int64_t first = FirstSequence(at, step);
    for (int b = 0; b < job_.micro_batch_size; ++b) {
      const int64_t place = int64_t{b} * job_.sequence_length;
      if (at.tokens != nullptr)
        PP_RETURN_IF_ERROR(args_.dataset->Inputs(first + b, Ints(at.tokens) + place));
      if (at.targets != nullptr)
        PP_RETURN_IF_ERROR(args_.dataset->Targets(first + b, Ints(at.targets) + place));
    }
    return {};
  }

  void Forward(const Addresses& at, int64_t step) override { Stage(at).Forward(Values(at, step)); }
  void ForwardDrop(const Addresses& at, int64_t step) override {
    Stage(at).ForwardDrop(Values(at, step));
  }
  void Recompute(const Addresses& at, int64_t step) override {
    Stage(at).Recompute(Values(at, step));
  }
  void Backward(const Addresses& at, int64_t step) override {
    Stage(at).Backward(Values(at, step));
  }
  void BackwardInput(const Addresses& at, int64_t step) override {
    Stage(at).BackwardInput(Values(at, step));
  }
  void BackwardWeight(const Addresses& at, int64_t step) override {
    Stage(at).BackwardWeight(Values(at, step));
  }
  void NormGrad(const Addresses& at) override { SumSquares(Stage(at).layout(), at.wgrad, at.norm); }
  void Step(const Addresses& at, const StepArgs& args) override {
    AdamWOptions options;
    options.learning_rate = static_cast<float>(args.learning_rate);
    options.weight_decay = static_cast<float>(args_.weight_decay);
    options.gradient_scale = static_cast<float>(args.gradient_scale);
    options.step = args.step;
    StepAdamW(Stage(at).layout(), options, at.wgrad, at.optimizer, at.weights);
  }

 private:
  static int32_t* Ints(std::byte* at) { return reinterpret_cast<int32_t*>(at); }
  Transformer& Stage(const Addresses& at) { return stages_.at(at.stage); }

  // Sequences count through the whole training.
  int64_t FirstSequence(const Addresses& at, int64_t step) const {
    return ((step - 1) * args_.program->microbatches + at.micro) * job_.micro_batch_size;
  }

  StageValues Values(const Addresses& at, int64_t step) const {
    StageValues values;
    values.weights = at.weights;
    values.wgrad = at.wgrad;
    values.scratch = at.scratch;
    values.tokens = Ints(at.tokens);
    values.targets = Ints(at.targets);
    values.act_before = reinterpret_cast<const float*>(at.act_before);
    values.act = reinterpret_cast<float*>(at.act);
    values.loss = at.loss;
    values.stash = at.stash;
    values.grad = reinterpret_cast<const float*>(at.grad);
    values.grad_before = reinterpret_cast<float*>(at.grad_before);
    values.work = at.work;
    values.first_sequence = FirstSequence(at, step);
    values.loss_scale = 1.0 / (static_cast<double>(args_.program->microbatches) * job_.tokens());
    values.update = at.first ? kernels::Update::kSet : kernels::Update::kAdd;
    return values;
  }

  const CpuBackendArgs args_;
  const Job job_;
  Workspace workspace_;
  std::map<int, Transformer> stages_;
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(const CpuBackendArgs& args) {
  omp_set_num_threads(args.threads);  // of this thread
  return std::make_unique<CpuBackend>(args);
}

}  // namespace pp
