// PipeDream and PipeDream-2BW against a reference that keeps the same versions of the weights: bit
// for bit, losses of five steps, dropout on. The reference is two loops in one thread, over
// micro-batches and stages, with every version that there ever was. It has no plan, and shares
// nothing with the interpreter except the stage's mathematics (runtime/model).
//
// Which weights micro-batch k, counted from 1 through the whole training, sees on device d of D,
// forward and backward alike (W(v): after v updates):
//
//   PipeDream   W(max(0, k - (D - d)))             one update per micro-batch
//   2BW         W(max(0, floor((k - 1) / M) - 1))  one update per step, of the sum over its M
//                                                  micro-batches
//
// (Narayanan et al., 2019 and 2021.)
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <optional>

#include "compiler/compile.h"
#include "runtime/device/cpu_kernels.h"
#include "runtime/files/dataset.h"
#include "runtime/model/operators.h"
#include "runtime/model/optimizer.h"
#include "runtime/model/parameters.h"
#include "runtime/run/train.h"
#include "tests/folder.h"
#include "tests/kept_report.h"
#include "tests/late_device.h"
#include "tests/models.h"

namespace pp {
namespace {

constexpr int kSteps = 5, kBatch = 2, kSequence = 8;
constexpr uint64_t kSeed = 3;

ModelConfig TinyModel() {
  return SmallModel("gpt2", /*tied=*/false, /*layers=*/4, /*positions=*/kSequence);
}

// The learning rate differs from step to step, which shows which one an update uses.
OptimizerOptions Optimizer() {
  return {.learning_rate = 1e-2,
          .min_learning_rate = 1e-3,
          .warmup_steps = 2,
          .cosine = true,
          .grad_clip = 0,
          .steps = kSteps};
}

struct Case {
  std::string scheme = "pipedream";
  int devices = 2;
  int micros = 4;
  P2p p2p = P2p::kAsync;

  std::string Text() const {
    return scheme + " D=" + std::to_string(devices) + " M=" + std::to_string(micros) +
           (p2p == P2p::kAsync ? " async" : " blocking");
  }
};

// --- the reference ----------------------------------------------------------------------------

// Memory that begins in the state that a kernel expects.
class Memory {
 public:
  explicit Memory(int64_t bytes) : blocks_(bytes / kAlign + 1) {}
  std::byte* data() { return reinterpret_cast<std::byte*>(blocks_.data()); }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(blocks_.data());
  }

 private:
  struct alignas(kAlign) Block {
    std::byte bytes[kAlign] = {};
  };
  std::vector<Block> blocks_;
};

struct Stage {
  Stage(const Job& job, int stage, Kernels* kernels)
      : kernels(kernels), model(MakeStage(job, stage, kSeed, kernels)) {
    Memory first(layout().weights_bytes);
    auto source = WeightSource::New(kSeed);
    REQUIRE(source.ok());
    for (const Tensor& tensor : layout().tensors)
      REQUIRE(source->Read(tensor, reinterpret_cast<float*>(first.data() + tensor.weight)).ok());
    versions.push_back(std::move(first));
  }
  const StageLayout& layout() const { return model.layout(); }

  void Update(double learning_rate) {
    Memory next = versions.back();
    StepAdamW(*kernels, AllParts(layout()),
              {.learning_rate = static_cast<float>(learning_rate),
               .weight_decay = static_cast<float>(Optimizer().weight_decay),
               .step = static_cast<int64_t>(versions.size())},
              {wgrad.data(), optimizer.data(), next.data()});
    versions.push_back(std::move(next));
  }

  Kernels* const kernels;
  StageModel model;
  std::vector<Memory> versions;  // W(0), W(1), ...
  Memory wgrad{layout().wgrad_bytes};
  Memory optimizer{layout().optimizer_bytes};
  Memory scratch{layout().scratch_bytes};
  Memory stash{layout().stash_bytes};
  Memory act{layout().act_bytes};
  Memory grad{layout().grad_bytes};
};

// A mistake of the reference, to check that it is found.
struct Mistake {
  int64_t forward = 0, backward = 0;  // added to the number of the version
};

class Reference {
 public:
  Reference(const Case& what, const Mistake& mistake) : case_(what), mistake_(mistake) {
    job_ = {TinyModel(), kBatch, kSequence,
            std::vector<int>(what.devices, TinyModel().layers / what.devices)};
    kernels_ = MakeCpuKernels(job_, 1);
    for (int s = 0; s < what.devices; ++s)
      stages_.push_back(std::make_unique<Stage>(job_, s, kernels_.get()));
    auto data = Dataset::Open({SharedText()},
                              {.vocab_size = TinyModel().vocab_size, .sequence_length = kSequence});
    REQUIRE(data.ok());
    data_ = std::make_unique<Dataset>(std::move(*data));
  }

  // The losses of all steps.
  std::vector<double> Train() {
    std::vector<double> losses;
    for (int64_t step = 1; step <= kSteps; ++step) {
      double sum = 0;
      for (int m = 0; m < case_.micros; ++m) sum += MicroBatch(step, m);
      losses.push_back(sum / TokensOfStep());
    }
    return losses;
  }

  Stage& stage(int s) { return *stages_[s]; }

 private:
  bool TwoBuffers() const { return case_.scheme == "pipedream-2bw"; }
  double TokensOfStep() const { return double{kBatch} * kSequence * case_.micros; }

  std::byte* Weights(int s, int64_t k, int64_t mistake) {
    const int64_t version = TwoBuffers() ? (k - 1) / case_.micros - 1 : k - (case_.devices - s);
    std::vector<Memory>& versions = stages_[s]->versions;
    const auto newest = static_cast<int64_t>(versions.size()) - 1;
    return versions[std::clamp<int64_t>(version + mistake, 0, newest)].data();
  }

  double MicroBatch(int64_t step, int m) {
    const int64_t k = (step - 1) * case_.micros + m + 1, first = (k - 1) * kBatch;
    for (int b = 0; b < kBatch; ++b) {
      REQUIRE(data_->Inputs(first + b, {tokens_.as<int32_t>() + b * kSequence, kSequence}).ok());
      REQUIRE(data_->Targets(first + b, {targets_.as<int32_t>() + b * kSequence, kSequence}).ok());
    }
    double loss = 0;
    for (int s = 0; s < case_.devices; ++s) {
      StageCall call = CallOf(s, m, first);
      call.weights = Weights(s, k, mistake_.forward);
      call.loss = &loss;
      stages_[s]->model.Forward(call);
    }
    for (int s = case_.devices - 1; s >= 0; --s) {
      StageCall call = CallOf(s, m, first);
      call.weights = Weights(s, k, mistake_.backward);
      stages_[s]->model.Backward(call);
    }
    if (!TwoBuffers() || m + 1 == case_.micros)
      for (auto& stage : stages_) stage->Update(LearningRate(Optimizer(), step));
    return loss;
  }

  StageCall CallOf(int s, int m, int64_t first_sequence) {
    Stage& stage = *stages_[s];
    const bool alone = m == 0 || !TwoBuffers();  // in its update, so far
    StageCall call{.wgrad = stage.wgrad.data(),
                   .scratch = stage.scratch.data(),
                   .stash = stage.stash.data(),
                   .first_sequence = first_sequence,
                   .per_token = 1 / TokensOfStep(),
                   .accumulate = alone ? kernels::Update::kSet : kernels::Update::kAdd};
    if (s == 0) {
      call.tokens = tokens_.as<int32_t>();
    } else {
      call.act_before = stages_[s - 1]->act.as<std::byte>();
      call.grad_before = stages_[s - 1]->grad.as<std::byte>();
    }
    if (stage.layout().last) {
      call.targets = targets_.as<int32_t>();
    } else {
      call.act = stage.act.as<std::byte>();
      call.grad = stage.grad.as<std::byte>();
    }
    return call;
  }

  const Case case_;
  const Mistake mistake_;
  Job job_;
  std::unique_ptr<Kernels> kernels_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::unique_ptr<Dataset> data_;
  Memory tokens_{kBatch * kSequence * 4}, targets_{kBatch * kSequence * 4};
};

std::vector<double> Expected(const Case& what, const Mistake& mistake = {}) {
  return Reference(what, mistake).Train();
}

// --- the run ----------------------------------------------------------------------------------

using AfterBind = std::function<void(int, BoundList*, std::vector<CollectiveArgs>*)>;

std::vector<double> Run(const Case& what, const LateDevices* late = nullptr,
                        const AfterBind& after_bind = nullptr, const std::string& export_to = "") {
  auto program = Compile({.scheme = what.scheme,
                          .shape = {what.devices, what.micros, 0},
                          .p2p = what.p2p,
                          .job = {.model = TinyModel(), .micro_batch_size = kBatch}});
  INFO(program.status().message());
  REQUIRE(program.ok());
  CHECK_FALSE(program->clip);
  TrainOptions options;
  options.data = {SharedText()};
  options.optimizer = Optimizer();
  options.seed = kSeed;
  options.stall_timeout = 60;
  options.after_bind = after_bind;
  if (late != nullptr) late->AddTo(&options);
  std::optional<ModelFolder> folder;
  if (!export_to.empty()) {
    auto opened = ModelFolder::Open(export_to);
    REQUIRE(opened.ok());
    folder.emplace(std::move(*opened));
    options.exports = true;
    options.export_to = &*folder;
  }
  const KeptReport report = TrainAndKeep(*program, options);
  INFO(report.status.message());
  REQUIRE(report.status.ok());
  std::vector<double> losses;
  for (const StepReport& step : report.steps) losses.push_back(step.loss);
  REQUIRE(losses.size() == kSteps);
  return losses;
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const char* scheme : {"pipedream", "pipedream-2bw"})
    for (int devices : {1, 2, 4})
      for (int micros : {4, 8})
        for (P2p p2p : {P2p::kAsync, P2p::kBlocking})
          cases.push_back({scheme, devices, micros, p2p});
  return cases;
}

TEST_CASE("PipeDream and 2BW have the bits of a reference that keeps the same versions") {
  for (const Case& what : AllCases()) {
    INFO(what.Text());
    const std::vector<double> expected = Expected(what);
    CHECK(Run(what) == expected);
    CHECK(expected.back() < expected.front());
  }
}

TEST_CASE("so they have when everything comes late") {
  for (const Case& what : AllCases()) {
    const std::vector<double> expected = Expected(what);
    for (unsigned seed : {1, 2}) {
      INFO(what.Text() << " seed " << seed);
      const LateDevices late(seed);
      CHECK(Run(what, &late) == expected);
    }
  }
}

TEST_CASE("a reference with another version has other bits") {
  for (const char* scheme : {"pipedream", "pipedream-2bw"})
    for (int devices : {1, 2, 4}) {
      const Case what{scheme, devices, 4};
      const std::vector<double> right = Expected(what);
      for (const Mistake& mistake : {Mistake{.forward = -1}, Mistake{.backward = -1},
                                     Mistake{.forward = 1}, Mistake{.backward = 1}}) {
        // Nothing is newer than the newest.
        if (devices == 1 && scheme == std::string("pipedream") &&
            mistake.forward + mistake.backward > 0)
          continue;
        INFO(what.Text() << " forward " << mistake.forward << " backward " << mistake.backward);
        CHECK(Expected(what, mistake) != right);
      }
    }
}

TEST_CASE("the newest version is exported") {
  for (const char* scheme : {"pipedream", "pipedream-2bw"}) {
    const Folder folder;
    const Case what{scheme, 4, 4};
    Reference reference(what, {});
    CHECK(Run(what, nullptr, nullptr, folder / "model") == reference.Train());
    auto source = WeightSource::Open(folder / "model", TinyModel());
    REQUIRE(source.ok());
    for (int s = 0; s < what.devices; ++s) {
      Stage& stage = reference.stage(s);
      for (const Tensor& tensor : stage.layout().tensors) {
        INFO(what.Text() << " " << tensor.name());
        std::vector<float> numbers(tensor.elements());
        REQUIRE(source->Read(tensor, numbers.data()).ok());
        CHECK(std::memcmp(numbers.data(), stage.versions.back().data() + tensor.weight,
                          tensor.bytes()) == 0);
      }
    }
  }
}

// The list of one rank with one version changed.
TEST_CASE("a run with another version has other bits") {
  for (const char* scheme : {"pipedream", "pipedream-2bw"})
    for (Op op : {Op::kForward, Op::kBackward}) {
      const Case what{scheme, 2, 4};
      std::vector<Instruction> changed;
      const AfterBind plant = [&](int rank, BoundList* list, std::vector<CollectiveArgs>*) {
        if (rank != 0) return;
        changed.assign(list->list.begin(), list->list.end());
        for (Instruction& i : changed)
          if (i.op == op && i.micro == 2) i.version = static_cast<int16_t>(1 - i.version);
        list->list = changed;
      };
      INFO(what.Text() << " " << Info(op).text);
      CHECK(Run(what, nullptr, plant) != Expected(what));
    }
}

TEST_CASE("a count of updates that is off by one has other bits") {
  const AfterBind plant = [](int rank, BoundList* list, std::vector<CollectiveArgs>*) {
    if (rank != 0) return;
    for (size_t i = 0; i < list->list.size(); ++i)
      if (list->list[i].op == Op::kBackward) ++list->steps_before[i];
  };
  for (const char* scheme : {"pipedream", "pipedream-2bw"}) {
    const Case what{scheme, 2, 4};
    INFO(what.Text());
    CHECK(Run(what, nullptr, plant) != Expected(what));
  }
}

}  // namespace
}  // namespace pp
