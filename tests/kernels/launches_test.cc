// What a micro-batch gives a GPU to do: how many kernels, products and copies its forward and
// backward submit, and how many numbers of activations they read and write. Counted as it is
// submitted, for GPT-2 124M as it is: nothing is executed, so addresses need no memory.
#include <catch2/catch.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/block/block.h"
#include "runtime/device/cuda/cuda_kernels.h"
#include "runtime/model/operators.h"
#include "schema/model/workspace.h"
#include "tests/models.h"

namespace pp {
namespace {

using kernels::Operands;

constexpr int kBatch = 4, kSequence = 1024, kWidth = 768, kVocabulary = 50257;

// Where a kernel's work would run.
struct CountingStream : kernels::cuda::emulation::StreamOf {
  void Submit(const void*, std::function<void()>) override { ++launches; }
  int launches = 0;
};

CountingStream& CountingOf(CudaDriver::Stream stream) {
  return *static_cast<CountingStream*>(static_cast<kernels::cuda::emulation::StreamOf*>(stream));
}

// Each address is given once.
class Addresses {
 public:
  std::byte* Take(int64_t bytes) {
    const uintptr_t at = next_;
    next_ += (static_cast<uintptr_t>(bytes) + 255) / 256 * 256 + 256;
    return reinterpret_cast<std::byte*>(at);
  }

 private:
  uintptr_t next_ = uintptr_t{1} << 32;
};

class CountingDriver : public CudaDriver {
 public:
  void Use() override {}
  Result<std::byte*> Allocate(int64_t bytes) override { return addresses_.Take(bytes); }
  Result<std::byte*> TakePinned(int64_t bytes) override {  // of angles, which the host writes
    return pinned_.emplace_back(bytes).data();
  }
  int64_t bytes() const override { return 0; }
  int64_t FreeBytes() override { return 0; }
  Stream MakeStream(Priority) override { return nullptr; }
  Event MakeEvent() override { return nullptr; }
  void Record(Event, Stream) override {}
  void WaitFor(Stream, Event) override {}
  bool Reached(Event) override { return true; }
  double SecondsBetween(Event, Event) override { return 0; }
  void Copy(void*, const void*, int64_t, Stream stream) override { ++CountingOf(stream).launches; }
  void Fill(void*, uint32_t, int64_t, Stream stream) override { ++CountingOf(stream).launches; }
  void LoadKernels() override {}
  GemmMachine machine() override { return {}; }
  void BeginProducts(std::byte*) override {}
  std::vector<GemmAlgorithm> Algorithms(const kernels::MatmulShape&, int) override { return {{}}; }
  PreparedProduct Prepare(const kernels::MatmulShape&, const GemmAlgorithm*,
                          const kernels::MatmulArgs&, Stream) override {
    return {.id = products_++};
  }
  void Multiply(int, const kernels::MatmulArgs&, Stream stream) override {
    ++CountingOf(stream).launches;
  }
  Status status() const override { return {}; }

 private:
  Addresses addresses_;
  std::deque<std::vector<std::byte>> pinned_;
  int products_ = 0;
};

// Numbers of activations that a kernel reads and writes in the GPU's memory; in a row that it has
// just read, it finds them in the cache. Those that GPT-2 without dropout does not need, and that
// are the same whatever is kept, are missing.
template <typename Args>
int64_t Numbers(const Args&) {
  return 0;
}
template <typename N>
int64_t Numbers(const kernels::LayerNormForwardArgs<N>& a) {
  return 2 * a.rows * a.channels;
}
template <typename N>
int64_t Numbers(const kernels::LayerNormBackwardArgs<N>& a) {
  return (a.add != nullptr ? 4 : 3) * a.rows * a.channels;
}
template <typename N>
int64_t Numbers(const kernels::GeluForwardArgs<N>& a) {
  return 2 * a.n;
}
template <typename N>
int64_t Numbers(const kernels::GeluBackwardArgs<N>& a) {
  return 3 * a.n;
}
template <typename N>
int64_t Numbers(const kernels::SwiGluForwardArgs<N>& a) {
  return 3 * a.rows * a.columns;
}
template <typename N>
int64_t Numbers(const kernels::ResidualArgs<N>& a) {
  return 3 * a.range.n;
}
template <typename N>
int64_t Numbers(const kernels::DropoutArgs<N>& a) {
  return 2 * a.range.n;
}
template <typename N>
int64_t Numbers(const kernels::BiasGradientArgs<N>& a) {
  int64_t columns = 0;
  for (const kernels::BiasTensor<N>& tensor : a.tensors) columns += tensor.n;
  return a.rows * columns;
}
template <typename N>
int64_t Numbers(const kernels::AttentionForwardArgs<N>& a) {
  return 4 * a.shape.batch * a.shape.tokens * a.shape.heads * a.shape.head_dim;
}
template <typename N>
int64_t Numbers(const kernels::AttentionBackwardArgs<N>& a) {
  return 8 * a.shape.batch * a.shape.tokens * a.shape.heads * a.shape.head_dim;
}
template <typename N>
int64_t Numbers(const kernels::CrossEntropyForwardArgs<N>& a) {
  return (a.dlogits != nullptr ? 2 : 1) * a.rows * a.vocabulary;
}
template <typename N>
int64_t Numbers(const kernels::CrossEntropyBackwardArgs<N>& a) {
  return 2 * a.rows * a.vocabulary;
}
int64_t Numbers(const kernels::MatmulShape& s) {
  const int64_t extra = (s.residual == kernels::WithResidual::kYes ? 1 : 0) +
                        (s.epilogue != kernels::Epilogue::kNone ? 1 : 0);
  return s.operands == Operands::kTN ? s.k * (s.m + s.n) : s.m * (s.k + (1 + extra) * s.n);
}

// By name, "products" and "copies".
struct Counts {
  int launches = 0;
  int64_t numbers = 0;
  std::map<std::string, int> launches_of;
  std::map<std::string, int64_t> numbers_of;

  void Add(const std::string& name, int times, int64_t moved) {
    launches += times, launches_of[name] += times;
    numbers += moved, numbers_of[name] += moved;
  }
};

// The kernels of a GPU.
class CountingKernels : public Kernels {
 public:
  explicit CountingKernels(const Job& job)
      : element_(BytesOf(job.dtype)),
        inner_(MakeCudaKernels(&driver_, Stream(), job, *driver_.Allocate(WorkspaceOf(job).bytes),
                               {.dead = {*driver_.Allocate(kDead), kDead}})) {}

#define PP_KERNEL(Name)                                 \
  void Name(const kernels::Name##Args& a) override {    \
    Count(#Name, Numbers(a), [&] { inner_->Name(a); }); \
  }
#define PP_KERNEL_OF(N, Name)                                    \
  void Name(const kernels::Name##Args<kernels::N>& a) override { \
    ActivationKernels<kernels::N>& inner = *inner_;              \
    Count(#Name, Numbers(a), [&] { inner.Name(a); });            \
  }
#define PP_KERNEL_OF_ALL(Name) PP_ACTIVATIONS(PP_KERNEL_OF, Name)
  PP_PLAIN_KERNELS(PP_KERNEL)
  PP_ACTIVATION_KERNELS(PP_KERNEL_OF_ALL)
#undef PP_KERNEL
#undef PP_KERNEL_OF
#undef PP_KERNEL_OF_ALL

  int Prepare(const kernels::MatmulShape& shape) override {
    shapes_.push_back(shape);
    return inner_->Prepare(shape);
  }
  void Multiply(int product, const kernels::MatmulArgs& args) override {
    Count("products", Numbers(shapes_[product]), [&] { inner_->Multiply(product, args); });
  }
  bool Fuses(const kernels::MatmulShape& shape) override { return inner_->Fuses(shape); }
  void Copy(const void* from, int64_t bytes, void* to) override {
    Count("copies", 2 * bytes / element_, [&] { inner_->Copy(from, bytes, to); });
  }
  Angles angles() const override { return inner_->angles(); }
  const int32_t* first_keys() const override { return inner_->first_keys(); }

  Counts counts;

 private:
  static constexpr size_t kDead = size_t{1} << 32;  // for the operands of any product

  CudaDriver::Stream Stream() { return static_cast<kernels::cuda::emulation::StreamOf*>(&stream_); }
  template <typename Run>
  void Count(const char* name, int64_t numbers, const Run& run) {
    const int before = stream_.launches;
    run();
    counts.Add(name, stream_.launches - before, numbers);
  }

  const int64_t element_;
  CountingStream stream_;
  CountingDriver driver_;
  const std::unique_ptr<Kernels> inner_;
  std::vector<kernels::MatmulShape> shapes_;  // by product
};

Job JobOf(std::vector<int> split, Dtype dtype = Dtype::kBf16) {
  ModelConfig model = Gpt2Model({.vocab_size = kVocabulary,
                                 .max_positions = kSequence,
                                 .hidden_size = kWidth,
                                 .heads = 12,
                                 .intermediate_size = 4 * kWidth});
  model.embedding_dropout = model.attention_dropout = model.residual_dropout = 0;
  for (const int layers : split) model.layers += layers;
  Job job = {model, kBatch, kSequence, std::move(split)};
  job.dtype = dtype;
  job.backend = DeviceKind::kCuda;
  return job;
}

// What a stage submits for its second micro-batch.
Counts CountsOf(const Job& job, int stage, Halves halves = Halves::kTogether) {
  CountingKernels counting(job);
  StageModel model = MakeStage(job, stage, 7, &counting);
  const StageLayout& layout = model.layout();
  Addresses memory;
  StageCall call = {.stage = stage, .accumulate = kernels::Update::kAdd};
  call.weights = memory.Take(layout.weights_bytes);
  call.rounded = memory.Take(layout.rounded_bytes);
  call.wgrad = memory.Take(layout.wgrad_bytes);
  call.scratch = memory.Take(layout.drop_scratch_bytes);
  call.kept = memory.Take(layout.kept_bytes);
  call.stash = memory.Take(layout.stash_bytes);
  call.work = memory.Take(layout.work_bytes);
  if (layout.first) call.tokens = reinterpret_cast<int32_t*>(memory.Take(layout.tokens_bytes));
  if (layout.last) {
    call.targets = reinterpret_cast<int32_t*>(memory.Take(layout.targets_bytes));
    call.loss = reinterpret_cast<double*>(memory.Take(layout.loss_bytes));
  } else {
    call.act = memory.Take(layout.act_bytes);
    call.grad = memory.Take(layout.grad_bytes);
  }
  if (!layout.first) {
    call.act_before = memory.Take(layout.act_bytes);
    call.grad_before = memory.Take(layout.grad_bytes);
  }
  for (int micro = 0; micro < 2; ++micro) {
    counting.counts = {};
    model.Forward(call);
    if (halves == Halves::kTogether) {
      model.Backward(call);
    } else {
      model.BackwardInput(call);
      model.BackwardWeight(call);
    }
  }
  return counting.counts;
}

// In units of [tokens, C].
double Units(int64_t numbers) {
  return static_cast<double>(numbers) / (kBatch * kSequence * kWidth);
}

// What one more layer adds.
struct Layer {
  int launches;
  double units;
  Counts few, more;

  int LaunchesOf(const std::string& name) const {
    const auto of = [&](const Counts& counts) {
      const auto found = counts.launches_of.find(name);
      return found == counts.launches_of.end() ? 0 : found->second;
    };
    return of(more) - of(few);
  }
};
Layer LayerOf(std::vector<int> split, int stage, Dtype dtype, Halves halves) {
  const Counts few = CountsOf(JobOf(split, dtype), stage, halves);
  ++split[stage];
  const Counts more = CountsOf(JobOf(split, dtype), stage, halves);
  return {more.launches - few.launches, Units(more.numbers - few.numbers), few, more};
}

// Products: 4 forward, 4 of input gradients, 4 of weight gradients. The norms: 2 forward and 2
// again, 2 backward with two kernels each, and 2 sums over micro-batches. Attention: 1 and 2. GELU
// again; both biases of each half of the layer in two launches.
TEST_CASE("a layer without dropout takes 28 launches, and nothing for the residual's backward") {
  const Halves halves = GENERATE(Halves::kTogether, Halves::kApart);
  for (const auto& [split, stage] : {std::pair{std::vector{2}, 0}, {{1, 2, 1}, 1}, {{1, 2}, 1}}) {
    const Layer layer = LayerOf(split, stage, Dtype::kBf16, halves);
    for (const auto& [name, launches] : layer.more.launches_of)
      UNSCOPED_INFO(name << ": " << layer.LaunchesOf(name) << " launches");
    // Numbers has each kernel of activations; Add takes gradients of parameters.
    for (const auto& [name, numbers] : layer.more.numbers_of)
      if (layer.LaunchesOf(name) > 0 && name != "Add") CHECK((numbers > 0 ? "" : name) == "");
    CHECK(layer.launches == 28);
    CHECK(layer.units == 103);  // 107 with a copy, read and written, for each of the two residuals
    CHECK(layer.LaunchesOf("products") == 12);
    CHECK(layer.LaunchesOf("BiasGradient") == 2);
    CHECK(layer.LaunchesOf("copies") == 0);
    CHECK(layer.LaunchesOf("Dropout") == 0);
    CHECK(layer.LaunchesOf("Residual") == 0);
    // In fp32 GELU has kernels of its own, forward and backward, and attention's backward a third.
    CHECK(LayerOf(split, stage, Dtype::kFp32, halves).launches == 31);
  }
}

// GPT-2 124M, and LLaMA with a SwiGLU of three times its width.
Job JobThatKeeps(const std::string& family, std::vector<OperatorKind> keep, Dtype dtype) {
  Job job = JobOf({2, 2}, dtype);
  if (family == "llama") {
    job.model.family = FindFamily(family);
    job.model.kv_heads = 4;
    job.model.head_dim = kWidth / 12;
    job.model.intermediate_size = 3 * kWidth;
  }
  job.keep = std::move(keep);
  return job;
}

// What a backward reads and writes again, and launches for that, it does not if it is kept; a
// stash has one more of it. In two bytes GELU's forward is a part of its product, and in fp32 a
// kernel, whether it is kept or not.
TEST_CASE("what is kept is not made again") {
  struct Kept {
    const char* family;
    std::vector<OperatorKind> kinds;
    int launches;  // fewer in a layer
    double units;  // that are not moved
    double stash;  // more units
  };
  const Kept kept[] = {
      {"gpt2", {OperatorKind::kNorm}, 2, 4, 2},
      {"gpt2", {OperatorKind::kGelu}, 1, 8, 4},
      {"gpt2", {OperatorKind::kNorm, OperatorKind::kGelu}, 3, 12, 6},
      {"llama", {OperatorKind::kNorm}, 2, 4, 2},
      {"llama", {OperatorKind::kNorm, OperatorKind::kSwiGlu}, 3, 4 + 9, 2 + 3},
  };
  for (const Kept& k : kept)
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp32})
      for (const Halves halves : {Halves::kTogether, Halves::kApart})
        for (const int stage : {0, 1}) {
          INFO(k.family << " " << TextOf(k.kinds, kKeepNames) << " in stage " << stage);
          const Job none = JobThatKeeps(k.family, {}, dtype);
          const Job some = JobThatKeeps(k.family, k.kinds, dtype);
          REQUIRE(CheckJob(some).ok());
          const Counts before = CountsOf(none, stage, halves);
          const Counts after = CountsOf(some, stage, halves);
          // The last stage has another norm.
          const int last = stage == 1 && k.kinds[0] == OperatorKind::kNorm ? 1 : 0;
          CHECK(before.launches - after.launches == 2 * k.launches + last);
          CHECK(Units(before.numbers - after.numbers) == 2 * k.units + 2 * last);
          const int64_t more =
              LayoutStage(some, stage).stash_bytes - LayoutStage(none, stage).stash_bytes;
          CHECK(Units(more / BytesOf(dtype)) == 2 * k.stash + last);
        }
}

// What was received is read where it is; only BW_weight needs a copy.
TEST_CASE("a stage copies the received gradient only for a later weight half") {
  for (const int stage : {0, 1}) {
    const Counts whole = CountsOf(JobOf({2, 2, 1}), stage);
    const Counts halves = CountsOf(JobOf({2, 2, 1}), stage, Halves::kApart);
    CHECK(halves.launches == whole.launches + 1);
    CHECK(Units(halves.numbers - whole.numbers) == 2);
  }
}

// One read from memory and one write, of a row that shared memory holds meanwhile. The backward's
// share was another read.
TEST_CASE("the loss goes over the logits twice") {
  const Counts counts = CountsOf(JobOf({1}), 0);
  CHECK(counts.launches_of.at("CrossEntropyForward") ==
        2);  // the rows, and the sum of their losses
  CHECK(counts.numbers_of.at("CrossEntropyForward") ==
        2 * int64_t{kBatch} * kSequence * kVocabulary);
  CHECK(!counts.launches_of.contains("CrossEntropyBackward"));
}

}  // namespace
}  // namespace pp
