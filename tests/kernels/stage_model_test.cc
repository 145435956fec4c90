// A stage's forward and backward against PyTorch, and against itself in other splits and halves.
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/attention.h"
#include "kernels/threads.h"
#include "runtime/device/cpu_kernels.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/operators.h"
#include "runtime/model/parameters.h"
#include "schema/model/workspace.h"
#include "tests/models.h"

namespace pp {
namespace {

const std::vector<std::string> kModels = {
    "tests/reference/gpt2_tiny", "tests/reference/gpt2_exact_tiny", "tests/reference/llama_tiny",
    "tests/reference/qwen2_tiny", "tests/reference/qwen3_tiny", "tests/reference/mistral_tiny",
    // Adapters of those, which alone are trained.
    "tests/reference/gpt2_lora", "tests/reference/qwen2_lora", "tests/reference/qwen2_lora_all"};
constexpr int kMicrobatches = 2, kBatch = 2, kTokens = 24, kVocabulary = 97;
constexpr int kRows = kBatch * kTokens;

// Aligned memory, full of NaN so that nothing is read before it is written. Compared by its bytes.
class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(bytes), blocks_((bytes + kAlign - 1) / kAlign + 1) {
    Poison();
  }
  void Poison() { std::memset(static_cast<void*>(data()), 0xff, bytes_); }
  std::byte* data() const { return reinterpret_cast<std::byte*>(blocks_.data()); }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }
  bool operator==(const Memory& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data(), other.data(), bytes_) == 0;
  }

 private:
  struct alignas(kAlign) Block {
    std::byte bytes[kAlign];
  };
  int64_t bytes_;
  mutable std::vector<Block> blocks_;
};

nlohmann::json ExpectedOf(const std::string& dir) {
  std::ifstream stream(dir + "/expected.json");
  return nlohmann::json::parse(stream);
}

// The model's folder: of an adapter, another one.
std::string ModelOf(const std::string& dir) { return ExpectedOf(dir).value("model", dir); }

Result<WeightSource> SourceOf(const std::string& dir, const Job& job) {
  return OpenWeights({.weights = ModelOf(dir), .adapter = job.lora.given() ? dir : ""}, job);
}

// All tensors of a stage.
Status Fill(Result<WeightSource> source, const StageLayout& layout, std::byte* weights) {
  PP_RETURN_IF_ERROR(source.status());
  for (const Tensor& tensor : layout.tensors)
    PP_RETURN_IF_ERROR(source->Read(tensor, reinterpret_cast<float*>(weights + tensor.weight)));
  return {};
}

// What a schedule may do with one stage and micro-batch.
enum class How { kWhole, kRecomputed, kHalves };

// All stages of a tiny model in one thread, as a rank would hold each.
class Pipeline {
 public:
  Pipeline(const std::string& dir, std::vector<int> split, float dropout, How how, int threads = 1,
           std::vector<OperatorKind> recompute = {}, std::vector<OperatorKind> keep = {})
      : how_(how), threads_(threads) {
    Result<ModelConfig> model = LoadModelConfig(ModelOf(dir) + "/config.json");
    REQUIRE(model.ok());
    model->embedding_dropout = model->attention_dropout = model->residual_dropout = dropout;
    job_ = {*model, kBatch, kTokens, std::move(split)};
    job_.recompute = std::move(recompute);
    job_.keep = std::move(keep);
    const std::string lora = ExpectedOf(dir).value("lora", "");
    if (!lora.empty()) REQUIRE(ReadLora(lora, &job_.lora).ok());
    REQUIRE(CheckJob(job_).ok());
    kernels_ = MakeCpuKernels(job_, threads);
    for (int s = 0; s < job_.stages(); ++s) {
      stages_.push_back(std::make_unique<Stage>(job_, s, kernels_.get()));
      REQUIRE(Fill(SourceOf(dir, job_), stages_[s]->layout(), stages_[s]->weights.data()).ok());
    }
    Result<Safetensors> file = Safetensors::Open(dir + "/expected.safetensors");
    REQUIRE(file.ok());
    const std::vector<int64_t> shape = {kMicrobatches, kBatch, kTokens};
    REQUIRE(file->ReadInts("tokens", shape, tokens_.as<int32_t>()).ok());
    REQUIRE(file->ReadInts("targets", shape, targets_.as<int32_t>()).ok());
  }

  struct Stage {
    Stage(const Job& job, int stage, Kernels* kernels) : model(MakeStage(job, stage, 7, kernels)) {}
    const StageLayout& layout() const { return model.layout(); }

    StageModel model;
    Memory weights{layout().weights_bytes};
    Memory wgrad{layout().wgrad_bytes};
    Memory optimizer{layout().optimizer_bytes};
    Memory scratch{layout().drop_scratch_bytes};
    Memory act{layout().act_bytes};
    Memory grad{layout().grad_bytes};
    Memory kept{layout().kept_bytes};
    Memory stash{layout().stash_bytes};
    Memory work{layout().work_bytes};
  };
  Stage& stage(int s) { return *stages_[s]; }

  // Forward and backward of all micro-batches; returns the mean loss. `logits`, if not null,
  // receives those of all of them, [M, B, T, V], without dropout.
  double Run(float* logits) {
    kernels::SetThreads(threads_);
    double loss = 0;
    for (int m = 0; m < kMicrobatches; ++m) {
      if (logits != nullptr) {
        Forward(m, Op::kEvaluate);
        CopyLogits(logits + int64_t{m} * kRows * kVocabulary);
      }
      loss += Forward(m, Op::kForward);
      for (int s = job_.stages() - 1; s >= 0; --s) Backward(s, m);
    }
    ExchangeTied();
    return loss / (kMicrobatches * kRows);
  }

  // One AdamW step of the fixture; returns the gradient norm.
  double Step(int64_t step) {
    std::vector<double> norms(NormBlocks(job_));
    for (auto& stage : stages_) {
      SumSquares(*kernels_, AllParts(stage->layout()), stage->wgrad.data(),
                 norms.data() + stage->layout().first_norm_block);
    }
    double sum = 0;
    for (const double norm : norms) sum += norm;
    const double norm = std::sqrt(sum);
    const kernels::Clipped clipped = {.scale =
                                          static_cast<float>(std::min(1.0, 1.0 / (norm + 1e-6)))};
    const AdamWOptions options = {
        .learning_rate = 1e-3f, .weight_decay = 0.1f, .clipped = &clipped, .step = step};
    for (auto& stage : stages_) {
      if (step == 1) std::memset(stage->optimizer.data(), 0, stage->layout().optimizer_bytes);
      StepAdamW(*kernels_, AllParts(stage->layout()), options,
                {stage->wgrad.data(), stage->optimizer.data(), stage->weights.data()});
    }
    return norm;
  }

  // The tensor's gradient, in the stage that counts it.
  const float* Gradient(const Tensor& tensor) {
    for (auto& stage : stages_) {
      for (const Tensor& mine : stage->layout().tensors) {
        if (mine.id == tensor.id) {
          return reinterpret_cast<const float*>(stage->wgrad.data() + mine.wgrad);
        }
      }
    }
    return nullptr;
  }

 private:
  StageCall Values(int s, int m) {
    Stage& stage = *stages_[s];
    StageCall values = {.weights = stage.weights.data(),
                        .wgrad = stage.wgrad.data(),
                        .scratch = stage.scratch.data(),
                        .kept = stage.kept.data(),
                        .stash = stage.stash.data(),
                        .work = stage.work.data(),
                        .first_sequence = 100 + m * kBatch,
                        .per_token = 1.0 / (kMicrobatches * kRows),
                        .accumulate = m == 0 ? kernels::Update::kSet : kernels::Update::kAdd};
    if (s == 0) values.tokens = tokens_.as<int32_t>() + m * kRows;
    if (s > 0) values.act_before = stages_[s - 1]->act.as<std::byte>();
    if (s > 0) values.grad_before = stages_[s - 1]->grad.as<std::byte>();
    if (stage.layout().last) {
      values.targets = targets_.as<int32_t>() + m * kRows;
    } else {
      values.act = stage.act.as<std::byte>();
      values.grad = stage.grad.as<std::byte>();
    }
    return values;
  }

  double Forward(int m, Op op) {
    double loss = 0;
    for (int s = 0; s < job_.stages(); ++s) {
      StageCall values = Values(s, m);
      values.op = op;
      values.loss = &loss;
      StageModel& model = stages_[s]->model;
      if (how_ == How::kRecomputed) {
        model.ForwardDrop(values);
        stages_[s]->stash.Poison();
        stages_[s]->scratch.Poison();
        values.loss = nullptr;
        values.act = nullptr;
        model.Recompute(values);
      } else {
        model.Forward(values);
      }
    }
    return loss;
  }

  void Backward(int s, int m) {
    StageModel& model = stages_[s]->model;
    if (how_ == How::kHalves) {
      model.BackwardInput(Values(s, m));
      model.BackwardWeight(Values(s, m));
    } else {
      model.Backward(Values(s, m));
    }
  }

  void CopyLogits(float* out) {
    const Stage& stage = *stages_.back();
    const StageOperator& loss = stage.layout().operators.back();
    const Spot logits_at = loss.of(Keep::kStash).in;
    const Memory& there = logits_at.area == Area::kKept ? stage.kept : stage.stash;
    const auto* logits = reinterpret_cast<const float*>(there.data() + logits_at.offset);
    for (int row = 0; row < kRows; ++row) {
      std::copy_n(logits + row * loss.op.in, kVocabulary, out + row * kVocabulary);
    }
  }

  // What REDUCE_tied does: both stages end up with the sum.
  void ExchangeTied() {
    if (!job_.TrainsTied()) return;
    Stage &first = *stages_.front(), &last = *stages_.back();
    if (stages_.size() == 1) return AddTied(first.layout(), first.wgrad.data());
    auto* lookup = reinterpret_cast<float*>(first.wgrad.data() + first.layout().tied_lookup);
    auto* head = reinterpret_cast<float*>(last.wgrad.data() + last.layout().tied_head);
    for (int64_t i = 0; i < first.layout().tied_bytes / 4; ++i) {
      lookup[i] = head[i] = lookup[i] + head[i];
    }
  }

  How how_;
  int threads_;
  Job job_;
  std::unique_ptr<Kernels> kernels_;
  std::vector<std::unique_ptr<Stage>> stages_;
  Memory tokens_{kMicrobatches * kRows * 4};
  Memory targets_{kMicrobatches * kRows * 4};
};

// |a - b| / |b|, as vectors.
double RelativeError(const float* a, const float* b, int64_t n) {
  double difference = 0, size = 0;
  for (int64_t i = 0; i < n; ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / size);
}

std::string WithoutPrefix(const std::string& name) {
  for (const std::string prefix : {"transformer.", "model."})
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return name;
}

const std::vector<std::vector<int>> kSplits = {{4}, {2, 2}, {1, 1, 1, 1}, {0, 1, 3}, {2, 2, 0}};

TEST_CASE("loss, logits, gradients and ten steps are PyTorch's") {
  const std::string dir = GENERATE(from_range(kModels));
  const nlohmann::json expected = ExpectedOf(dir);
  Result<Safetensors> file = Safetensors::Open(dir + "/expected.safetensors");
  REQUIRE(file.ok());
  for (const std::vector<int>& split : kSplits) {
    INFO(dir << " in " << split.size());
    Pipeline pipeline(dir, split, 0, How::kWhole);
    std::vector<float> logits(kMicrobatches * kRows * kVocabulary), right(logits.size());
    const double loss = pipeline.Run(logits.data());
    CHECK(loss == Approx(expected["loss"].get<double>()).epsilon(1e-5));
    REQUIRE(file->ReadFloats("logits", {kMicrobatches, kBatch, kTokens, kVocabulary}, right.data())
                .ok());
    CHECK(RelativeError(logits.data(), right.data(), logits.size()) < 1e-5);

    for (size_t s = 0; s < split.size(); ++s) {
      for (const Tensor& tensor : pipeline.stage(s).layout().tensors) {
        if (!tensor.trainable()) continue;
        INFO(tensor.name());
        std::vector<float> gradient(tensor.elements());
        for (const Slice& slice : SlicesOf(tensor, {}))
          REQUIRE(file->ReadFloats("grad." + WithoutPrefix(slice.name), slice.shape,
                                   {slice.row, slice.col, slice.rows, slice.cols, tensor.cols},
                                   gradient.data() + slice.at)
                      .ok());
        CHECK(RelativeError(pipeline.Gradient(tensor), gradient.data(), gradient.size()) < 1e-4);
      }
    }
    for (int step = 0; step < 10; ++step) {
      CHECK(pipeline.Run(nullptr) == Approx(expected["losses"][step].get<double>()).epsilon(1e-4));
      CHECK(pipeline.Step(step + 1) ==
            Approx(expected["grad_norms"][step].get<double>()).epsilon(1e-4));
    }
  }
}

// Of what is trained.
void CheckSameGradients(Pipeline* one, Pipeline* other) {
  for (const Tensor& tensor : one->stage(0).layout().tensors) {
    if (!tensor.trainable()) continue;
    INFO(tensor.name());
    CHECK(std::memcmp(one->Gradient(tensor), other->Gradient(tensor), tensor.bytes()) == 0);
  }
}

// Loss and all gradients of `steps` steps must have the same bits.
void CheckSameBits(Pipeline* one, Pipeline* other, int steps = 3) {
  for (int step = 1; step <= steps; ++step) {
    CHECK(one->Run(nullptr) == other->Run(nullptr));
    CheckSameGradients(one, other);
    CHECK(one->Step(step) == other->Step(step));
  }
}

// So that one instruction of a large stage does not look like a stalled run.
TEST_CASE("a stage counts the operators that it starts") {
  Pipeline pipeline(kModels[0], {4}, 0, How::kWhole);
  std::atomic<int64_t> started = 0;
  pipeline.stage(0).model.CountIn(&started);
  pipeline.Run(nullptr);
  const auto operators = static_cast<int64_t>(pipeline.stage(0).layout().operators.size());
  CHECK(started >= 2 * kMicrobatches * operators);  // forward and backward
}

TEST_CASE("every split has the bits of one stage") {
  const std::string dir = GENERATE(from_range(kModels));
  for (const std::vector<int>& split : kSplits) {
    Pipeline one(dir, {4}, 0.1f, How::kWhole), other(dir, split, 0.1f, How::kWhole);
    CheckSameBits(&one, &other);
  }
}

TEST_CASE("a recomputed forward and a split backward have the bits of the whole") {
  const std::string dir = GENERATE(from_range(kModels));
  const float dropout = GENERATE(0.0f, 0.1f);
  for (const How how : {How::kRecomputed, How::kHalves}) {
    for (const std::vector<int>& split : kSplits) {
      Pipeline one(dir, {4}, dropout, How::kWhole), other(dir, split, dropout, how);
      CheckSameBits(&one, &other);
    }
  }
}

// What is kept, and what is recomputed from it, for every choice of what is dropped.
TEST_CASE("a selective recomputation has the bits of the whole") {
  const std::string dir = GENERATE(from_range(kModels));
  constexpr OperatorKind kKinds[] = {OperatorKind::kNorm, OperatorKind::kLinear,
                                     OperatorKind::kAttention, OperatorKind::kResidual};
  const float dropout = GENERATE(0.0f, 0.1f);
  Pipeline one(dir, {4}, dropout, How::kWhole);
  const double loss = one.Run(nullptr);
  const int64_t all = one.stage(0).layout().stash_bytes;
  for (unsigned set = 1; set < 16; ++set) {
    std::vector<OperatorKind> recompute;
    for (int k = 0; k < 4; ++k)
      if ((set >> k & 1) != 0) recompute.push_back(kKinds[k]);
    INFO(TextOf(recompute, kRecomputeNames));
    Pipeline other(dir, {4}, dropout, How::kRecomputed, 1, recompute);
    const StageLayout& layout = other.stage(0).layout();
    CHECK(layout.kept_bytes + layout.stash_bytes >= all);
    CHECK(layout.kept_bytes + layout.stash_bytes < all + 2 * kAlign);
    CHECK(layout.stash_bytes > 0);
    CHECK((layout.kept_bytes > 0) == (set != 15));
    CHECK(other.Run(nullptr) == loss);
    CheckSameGradients(&one, &other);
    // Only attention is recomputed from what was kept.
    int again = 0;
    for (const StageOperator& placed : layout.operators) again += placed.recomputed;
    if (set == 4) CHECK(again == 4);
  }
}

// Of the kinds that the model has: one, the other, both.
std::vector<std::vector<OperatorKind>> WaysToKeep(const std::string& dir) {
  const OperatorKind own =
      dir.find("gpt2") != std::string::npos ? OperatorKind::kGelu : OperatorKind::kSwiGlu;
  return {{OperatorKind::kNorm}, {own}, {OperatorKind::kNorm, own}};
}

TEST_CASE("what is kept has the bits of what is made again") {
  const std::string dir = GENERATE(from_range(kModels));
  const float dropout = GENERATE(0.0f, 0.1f);
  for (const How how : {How::kWhole, How::kRecomputed, How::kHalves})
    for (const std::vector<OperatorKind>& keep : WaysToKeep(dir)) {
      INFO(dir << " keeps " << TextOf(keep, kKeepNames));
      Pipeline one(dir, {4}, dropout, How::kWhole), other(dir, {2, 2}, dropout, how, 1, {}, keep);
      CheckSameBits(&one, &other);
    }
}

// RE makes what a CFW drops, whatever that keeps.
TEST_CASE("what is kept is dropped by a selective recomputation, too") {
  const std::string dir = GENERATE(from_range(kModels));
  Pipeline one(dir, {4}, 0.1f, How::kWhole);
  const double loss = one.Run(nullptr);
  for (const OperatorKind drops : {OperatorKind::kNorm, OperatorKind::kLinear,
                                   OperatorKind::kAttention, OperatorKind::kResidual}) {
    INFO(dir << " drops " << NameOf(drops));
    Pipeline plain(dir, {4}, 0.1f, How::kRecomputed, 1, {drops});
    Pipeline other(dir, {4}, 0.1f, How::kRecomputed, 1, {drops}, WaysToKeep(dir).back());
    CHECK(other.stage(0).layout().kept_bytes == plain.stage(0).layout().kept_bytes);
    CHECK(other.Run(nullptr) == loss);
    CheckSameGradients(&one, &other);
  }
}

TEST_CASE("two threads have the bits of one") {
  const std::string dir = GENERATE(from_range(kModels));
  Pipeline one(dir, {4}, 0.1f, How::kWhole), other(dir, {2, 2}, 0.1f, How::kWhole, 2);
  CheckSameBits(&one, &other, 1);
}

TEST_CASE("the plan has the room that the kernels take") {
  for (const int tokens : {1, 33, 64, 500, 513, 1024, 4096}) {
    for (const int head : {1, 31, 64, 128, 1000}) {
      INFO(tokens << " tokens, heads of " << head);
      Job job = {Gpt2Model({.vocab_size = 5,
                            .max_positions = tokens,
                            .hidden_size = 2 * head,
                            .layers = 1,
                            .heads = 2,
                            .intermediate_size = 8}),
                 3,
                 tokens,
                 {1}};
      const kernels::AttentionShape shape = {3, tokens, 2, head};
      namespace cpu = kernels::cpu;
      CHECK(WorkspaceOf(job).kernel_bytes ==
            static_cast<int64_t>(std::max(cpu::Matmul::ScratchBytes(kernels::MatmulNumbers::kFp32),
                                          cpu::AttentionScratchBytes<float>(shape))));
      job.dtype = Dtype::kBf16;  // fp16's have the same number
      CHECK(WorkspaceOf(job).kernel_bytes ==
            static_cast<int64_t>(std::max(cpu::Matmul::ScratchBytes(kernels::MatmulNumbers::kBf16),
                                          cpu::AttentionScratchBytes<kernels::BFloat16>(shape))));
    }
  }
}

TEST_CASE("a window is a list of first keys if it is shorter than a sequence") {
  constexpr int kLength = 24;
  Job job = {SmallModel("mistral", false, 1, kLength), 2, kLength, {1}};
  job.model.sliding_window = 0;
  const int64_t bytes = WorkspaceOf(job).bytes;
  for (const int window : {0, 1, 2, 5, 23, 24, 25}) {
    INFO("a window of " << window);
    job.model.sliding_window = window;
    const Workspace workspace = WorkspaceOf(job);
    Memory memory(workspace.bytes);
    const auto kernels = MakeCpuKernels(job, 1, memory.data());
    const int32_t* first = kernels->first_keys();
    if (window == 0 || window >= kLength) {
      CHECK(first == nullptr);
      CHECK(workspace.bytes == bytes);
      continue;
    }
    CHECK(workspace.bytes >= bytes + kLength * 4);
    CHECK(workspace.kernels - workspace.first_keys >= kLength * 4);
    REQUIRE(reinterpret_cast<const std::byte*>(first) == memory.data() + workspace.first_keys);
    // As transformers hides them: sliding_window_overlay of masking_utils.py.
    for (int query = 0; query < kLength; ++query)
      for (int key = 0; key <= query; ++key) CHECK((key >= first[query]) == (key > query - window));
  }
}

TEST_CASE("a new model is the same in every split") {
  const std::string dir = GENERATE(from_range(kModels));
  const Result<ModelConfig> model = LoadModelConfig(ModelOf(dir) + "/config.json");
  REQUIRE(model.ok());
  Job job = {*model, kBatch, kTokens, {4}};
  const std::string lora = ExpectedOf(dir).value("lora", "");
  if (!lora.empty()) REQUIRE(ReadLora(lora, &job.lora).ok());
  const StageLayout whole = LayoutStage(job, 0);
  job.layers_per_stage = GENERATE(std::vector{1, 3}, std::vector{0, 4, 0}, std::vector{0, 2, 0, 2});
  Memory all(whole.weights_bytes);
  REQUIRE(Fill(WeightSource::New(5), whole, all.data()).ok());
  for (int s = 0; s < job.stages(); ++s) {
    const StageLayout part = LayoutStage(job, s);
    Memory weights(part.weights_bytes);
    REQUIRE(Fill(WeightSource::New(5), part, weights.data()).ok());
    for (const Tensor& tensor : part.tensors) {
      INFO(tensor.name());
      const Tensor& same = *std::find_if(whole.tensors.begin(), whole.tensors.end(),
                                         [&](const Tensor& one) { return one.id == tensor.id; });
      CHECK(same.name() == tensor.name());
      CHECK(std::memcmp(all.data() + same.weight, weights.data() + tensor.weight, tensor.bytes()) ==
            0);
    }
  }
  const auto* wte = all.as<float>();
  double squares = 0;
  for (int i = 0; i < 97 * 36; ++i) squares += double{wte[i]} * wte[i];
  CHECK(std::sqrt(squares / (97 * 36)) == Approx(0.02).epsilon(0.05));
}

}  // namespace
}  // namespace pp
