#include "runtime/compare/one_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/elementwise.h"
#include "runtime/device/cpu_device.h"
#include "runtime/model/executor.h"
#include "runtime/plan/binding.h"
#include "runtime/plan/document_bounds.h"
#include "runtime/run/fill_states.h"
#include "schema/model/workspace.h"
#include "schema/routines.h"
#include "schema/semantics/extents.h"

namespace pp {
namespace {

// Hands out places one after the other.
class Room {
 public:
  int64_t Take(int64_t bytes) {
    const int64_t at = end_;
    end_ += (bytes + kAlign - 1) / kAlign * kAlign;
    return at;
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_ = 0;
};

class OneDeviceOf : public OneDevice {
 public:
  explicit OneDeviceOf(const Args& args)
      : args_(args),
        run_(*args.program),
        one_(ProgramOf(run_)),
        job_(*one_.job),
        device_(MakeCpuDevice()),
        reader_(one_, 0, 0) {}

  Status Begin() {
    PlaceAll();
    PP_RETURN_IF_ERROR(device_->Allocate(room_.end()));
    executor_ = MakeExecutor({.program = &one_,
                              .device = 0,
                              .seed = args_.inputs->seed(),
                              .optimizer = args_.inputs->optimizer()},
                             MakeKernels(one_, 0, args_.threads, device_.get()));
    for (int stage = 0; stage < one_.stages; ++stage)
      calls_.push_back(BindStage(one_, 0, stage, 0, *device_));
    documents_.emplace(job_, &args_.inputs->batches(), BindDocuments(one_, 0, *device_));
    PP_RETURN_IF_ERROR(FillAll());
    FillLossScale(one_, 0, args_.inputs->loss_scale(), device_.get());
    for (int stage = 0; args_.noise.any() && stage < one_.stages; ++stage) DisturbWeights(stage);
    return {};
  }

  Status Step(int64_t step, const std::function<void(const ValueRecord&)>& keep) override {
    keep_ = &keep;
    step_ = step;
    bool first = true;
    for (int replica = 0; replica < run_.replicas; ++replica)
      for (size_t pipe = 0; pipe < run_.pipes.size(); ++pipe) {
        PP_RETURN_IF_ERROR(RunCopy(replica, static_cast<int>(pipe)));
        AddSums(std::exchange(first, false));
      }
    return Update();
  }

 private:
  // Where the values of a micro-batch lie, the same place for all micro-batches.
  struct Places {
    int64_t act = 0, grad = 0, stash = 0, total = 0;  // total: of the gradients of all copies
  };

  static Program ProgramOf(const Program& run) {
    Program one;
    one.scheme = "one device";
    one.devices = 1;
    one.stages = run.stages;
    one.microbatches = run.microbatches * run.replicas;
    one.pipes = {{std::vector<int32_t>(run.stages, 0)}};
    one.pipe_of.assign(one.microbatches, 0);
    one.shape_of = run.shape_of;  // of a replica's
    one.clip = run.clip;
    one.job = run.job;
    one.job->backend = DeviceKind::kCpu;
    one.job->tp = 1;
    one.job->sequence_parallel = false;
    one.job->recompute.clear();
    one.lists.resize(1);
    return one;
  }

  void PlaceAll() {
    int64_t scratch = 0;
    const auto region = [&](Kind kind, int stage, int64_t bytes) {
      one_.lists[0].regions.push_back({kind, stage, stage < 0 ? -1 : 0, room_.Take(bytes), bytes});
    };
    const Extents extents(one_);
    const auto most = [&](int stage, int64_t StageLayout::*bytes) {
      int64_t all = 0;
      for (int shape = 0; shape < extents.shapes(); ++shape)
        all = std::max(all, extents.Of(stage, shape).*bytes);
      return all;
    };
    for (int stage = 0; stage < one_.stages; ++stage) {
      const StageLayout& layout = reader_.layout(stage);
      region(Kind::kWeights, stage, layout.weights_bytes);
      region(Kind::kWgrad, stage, layout.wgrad_bytes);
      region(Kind::kOptimizer, stage, layout.optimizer_bytes);
      scratch = std::max(scratch, most(stage, &StageLayout::scratch_bytes));
      places_.push_back({.act = room_.Take(most(stage, &StageLayout::act_bytes)),
                         .grad = room_.Take(most(stage, &StageLayout::grad_bytes)),
                         .stash = room_.Take(most(stage, &StageLayout::stash_bytes)),
                         .total = copies() > 1 ? room_.Take(layout.wgrad_bytes) : 0});
    }
    region(Kind::kScratch, -1, scratch);
    region(Kind::kWorkspace, -1, WorkspaceOf(job_).bytes);
    region(Kind::kLoss, -1, sizeof(double));
    const int64_t scaling = InfoOf(job_.dtype).scales_loss ? kLossScaleBytes : 0;
    if (one_.clip)
      region(Kind::kNorm, -1,
             (NormBlocks(job_) + 1) * static_cast<int64_t>(sizeof(double)) + scaling);
    tokens_ = room_.Take(most(0, &StageLayout::tokens_bytes));
    targets_ = room_.Take(most(one_.stages - 1, &StageLayout::targets_bytes));
  }

  int64_t copies() const { return run_.Copies(); }

  Status FillAll() {
    if (args_.inputs->checkpoint())
      return LoadStates(*args_.inputs->checkpoint(), {.program = &one_,
                                                      .place = {},
                                                      .device = device_.get(),
                                                      .newest = [](int, int) { return 0; },
                                                      .on_piece = [] {}});
    Result<WeightSource> weights =
        OpenWeights({args_.inputs->seed(), args_.weights, args_.adapter}, job_);
    PP_RETURN_IF_ERROR(weights.status());
    return FillStates(one_, {}, &*weights, device_.get());
  }

  // Random signs, the same for both ends of a tied tensor.
  class Signs {
   public:
    Signs(const Tensor& tensor, int64_t step)
        : bits_(static_cast<uint64_t>(tensor.id) * 0x9e3779b97f4a7c15 +
                static_cast<uint64_t>(step)) {}
    double Next() {
      bits_ = bits_ * 6364136223846793005 + 1442695040888963407;
      return bits_ >> 63 != 0 ? 1 : -1;
    }

   private:
    uint64_t bits_;
  };

  void DisturbWeights(int stage) {
    for (const Tensor& tensor : reader_.layout(stage).tensors) {
      auto* weights = reinterpret_cast<float*>(calls_[stage].weights + tensor.weight);
      Signs signs(tensor, 0);
      for (int64_t i = 0; i < tensor.elements(); ++i)
        weights[i] *= static_cast<float>(1 + args_.noise.weights * signs.Next());
    }
  }

  void DisturbGradients(int stage) {
    for (const Tensor& tensor : reader_.layout(stage).tensors) {
      if (!tensor.trainable()) continue;
      auto* wgrad = reinterpret_cast<float*>(calls_[stage].wgrad + tensor.wgrad);
      double squares = 0;
      for (int64_t i = 0; i < tensor.elements(); ++i) squares += double{wgrad[i]} * wgrad[i];
      const double each =
          args_.noise.gradients * std::sqrt(squares / static_cast<double>(tensor.elements()));
      Signs signs(tensor, step_);
      for (int64_t i = 0; i < tensor.elements(); ++i)
        if (wgrad[i] != 0) wgrad[i] += static_cast<float>(each * signs.Next());
    }
  }

  // What a call reads and writes besides the states.
  StageCall CallOf(int stage, Op op) const {
    StageCall call = calls_[stage];
    call.op = op;
    call.step = args_.inputs->steps_before() + step_;
    if (stage == 0) call.tokens = reinterpret_cast<int32_t*>(device_->at(tokens_));
    if (stage + 1 == one_.stages) call.targets = reinterpret_cast<int32_t*>(device_->at(targets_));
    if (stage > 0) call.act_before = device_->at(places_[stage - 1].act);
    if (stage > 0) call.grad_before = device_->at(places_[stage - 1].grad);
    call.act = device_->at(places_[stage].act);
    call.grad = device_->at(places_[stage].grad);
    call.stash = device_->at(places_[stage].stash);
    return call;
  }

  // The micro-batches of one copy; wgrad becomes their sum.
  Status RunCopy(int replica, int pipe) {
    bool first = true;
    const std::vector<int32_t>& pipe_of =
        PipesOfStep(run_, args_.inputs->batches().Microbatches(step_));
    for (size_t at = 0; at < pipe_of.size(); ++at) {
      if (pipe_of[at] != pipe) continue;
      const auto micro = static_cast<int>(at);
      PP_RETURN_IF_ERROR(RunMicroBatch(
          replica, micro,
          std::exchange(first, false) ? kernels::Update::kSet : kernels::Update::kAdd));
    }
    ValueName name{.step = step_, .what = Checked::kOwnSum, .replica = replica, .pipe = pipe};
    for (int stage = 0; stage < one_.stages; ++stage) {
      name.depth = stage;
      Tensors(name, stage, ValueReader::Numbers::kWgrad);
    }
    return {};
  }

  Status RunMicroBatch(int replica, int micro, kernels::Update update) {
    const Batches& batches = args_.inputs->batches();
    const auto numbers = [&](int64_t at) { return reinterpret_cast<int32_t*>(device_->at(at)); };
    PP_RETURN_IF_ERROR(batches.Inputs(step_, replica, micro, numbers(tokens_)));
    PP_RETURN_IF_ERROR(batches.Targets(step_, replica, micro, numbers(targets_)));
    const Result<double> per_token = batches.PerToken(step_);
    PP_RETURN_IF_ERROR(per_token.status());
    StageCall documents;
    PP_RETURN_IF_ERROR(documents_->Bring(step_, replica, micro, &device_->compute(), &documents));
    ValueName name{.step = step_, .replica = replica, .micro = micro};
    const auto run = [&](int stage, Op op) {
      StageCall call = CallOf(stage, op);
      call.micro = micro;
      call.shape = run_.ShapeOf(micro);
      call.accumulate = update;
      call.first_sequence = batches.FirstSequence(step_, replica, micro);
      call.per_token = *per_token;
      call.first_keys = documents.first_keys;
      call.positions = documents.positions;
      executor_->Run(call);
      return call;
    };
    for (int stage = 0; stage < one_.stages; ++stage) {
      const StageCall call = run(stage, Op::kForward);
      name.depth = stage;
      const bool last = stage + 1 == one_.stages;
      name.what = last ? Checked::kLoss : Checked::kAct;
      (*keep_)(last ? reader_.Scalar(name, *call.loss) : reader_.Activation(name, call.act));
    }
    for (int stage = one_.stages; stage-- > 0;) {
      const StageCall call = run(stage, Op::kBackward);
      if (stage == 0) continue;
      name.what = Checked::kGrad;
      name.depth = one_.stages - stage;
      (*keep_)(reader_.Activation(name, call.grad_before));
    }
    return {};
  }

  void Tensors(const ValueName& name, int stage, ValueReader::Numbers numbers) {
    const std::byte* base =
        numbers == ValueReader::Numbers::kWgrad ? calls_[stage].wgrad : calls_[stage].weights;
    reader_.Tensors(name, stage, 0, ValueReader::Whose::kAll, numbers, base, *keep_);
  }

  void AddSums(bool first) {
    if (copies() == 1) return;
    for (int stage = 0; stage < one_.stages; ++stage) {
      const int64_t bytes = reader_.layout(stage).wgrad_bytes;
      std::byte* total = device_->at(places_[stage].total);
      if (first) {
        std::memcpy(total, calls_[stage].wgrad, bytes);
      } else {
        kernels::cpu::Add({.n = bytes / 4,
                           .x = reinterpret_cast<const float*>(calls_[stage].wgrad),
                           .out = reinterpret_cast<float*>(total)});
      }
    }
  }

  Status Update() {
    const Batches& batches = args_.inputs->batches();
    const Result<double> per_token = batches.PerToken(step_);
    PP_RETURN_IF_ERROR(per_token.status());
    const Result<int64_t> empty = batches.EmptySteps(step_);
    PP_RETURN_IF_ERROR(empty.status());
    const int last = one_.stages - 1;
    for (int stage = 0; copies() > 1 && stage <= last; ++stage)
      std::memcpy(calls_[stage].wgrad, device_->at(places_[stage].total),
                  reader_.layout(stage).wgrad_bytes);
    AddTiedEnds(last);
    ValueName name{.step = step_};
    const auto all = [&](Checked what, ValueReader::Numbers numbers) {
      name.what = what;
      for (name.depth = 0; name.depth <= last; ++name.depth) Tensors(name, name.depth, numbers);
    };
    all(Checked::kSum, ValueReader::Numbers::kWgrad);
    for (int stage = 0; one_.clip && stage <= last; ++stage)
      executor_->Run(CallOf(stage, Op::kNormGrad));
    for (int stage = 0; args_.noise.any() && stage <= last; ++stage) DisturbGradients(stage);
    for (int stage = 0; stage <= last; ++stage) {
      StageCall call = CallOf(stage, Op::kStep);
      call.update = args_.inputs->updates_before() + step_ - *empty;
      call.per_token = *per_token;
      executor_->Run(call);
    }
    all(Checked::kWeights, ValueReader::Numbers::kWeights);
    if (one_.clip)
      (*keep_)(reader_.Scalar({.step = step_, .what = Checked::kNorm},
                              calls_[0].norm[NormBlocks(job_)]));
    return {};
  }

  void AddTiedEnds(int last) {
    const StageLayout &a = reader_.layout(0), &b = reader_.layout(last);
    if (last == 0) return AddTied(a, calls_[0].wgrad);
    if (a.tied_lookup < 0 || b.tied_head < 0) return;
    std::byte *lookup = calls_[0].wgrad + a.tied_lookup, *head = calls_[last].wgrad + b.tied_head;
    kernels::cpu::Add({.n = a.tied_bytes / 4,
                       .x = reinterpret_cast<const float*>(head),
                       .out = reinterpret_cast<float*>(lookup)});
    std::memcpy(head, lookup, a.tied_bytes);
  }

  const Args args_;
  const Program& run_;
  Program one_;
  const Job job_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<StageExecutor> executor_;
  std::optional<DocumentBounds> documents_;
  ValueReader reader_;
  Room room_;
  std::vector<Places> places_;    // by stage
  std::vector<StageCall> calls_;  // by stage: the states
  int64_t tokens_ = 0, targets_ = 0;
  int64_t step_ = 0;
  const std::function<void(const ValueRecord&)>* keep_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<OneDevice>> OneDevice::Make(const Args& args) {
  auto made = std::make_unique<OneDeviceOf>(args);
  PP_RETURN_IF_ERROR(made->Begin());
  return Result<std::unique_ptr<OneDevice>>(std::move(made));
}

}  // namespace pp
