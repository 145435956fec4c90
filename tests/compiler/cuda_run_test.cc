// The CUDA backend as a whole, without a GPU: its device, queues, kernels and messages (copied from
// one's memory to another's, or staged) over a fake of CUDA (fake_cuda.h) train what the CPU
// trains.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "compiler/scheme.h"
#include "runtime/device/cuda/cuda_plugin.h"
#include "runtime/plan/binding.h"
#include "schema/semantics/regions.h"
#include "schema/text.h"
#include "tests/cuda_runs.h"
#include "tests/fake_cuda.h"
#include "tests/folder.h"
#include "tests/forwarding_cuda.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

struct Plant {
  // The events of this stream, counted as they are created, count as reached as soon as they are
  // recorded.
  int hasty = -1;
  int64_t bytes = INT64_MAX;   // the limit of a single allocation
  int64_t events = INT64_MAX;  // before everything fails
  bool fuses = true;           // products have epilogues
  // For products with this epilogue, aux is set to C.
  kernels::Epilogue wrong_aux = kernels::Epilogue::kNone;
  int slow_rank = -1;  // before each of its products the other streams have a millisecond
  std::function<void(int rank, BoundList*, std::vector<CollectiveArgs>*)> after_bind;
};

class PlantedCuda : public ForwardingCuda {
 public:
  PlantedCuda(int rank, std::unique_ptr<CudaDriver> inner, const Plant& plant)
      : ForwardingCuda(std::move(inner)), rank_(rank), plant_(plant) {}

  Result<std::byte*> Allocate(int64_t bytes) override {
    if (bytes > plant_.bytes) return Status::Invalid("the plan takes too many bytes");
    return inner_->Allocate(bytes);
  }
  Stream MakeStream(Priority priority) override {
    const Stream stream = inner_->MakeStream(priority);
    if (made_++ == plant_.hasty) hasty_stream_ = stream;
    return stream;
  }
  void Record(Event event, Stream stream) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stream == hasty_stream_) hasty_events_.insert(event);
    }
    inner_->Record(event, stream);
  }
  bool Reached(Event event) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return hasty_events_.contains(event) || inner_->Reached(event);
  }
  PreparedProduct Prepare(const kernels::MatmulShape& shape, const GemmAlgorithm* algorithm,
                          const kernels::MatmulArgs& dead, Stream stream) override {
    if (shape.epilogue != kernels::Epilogue::kNone && !plant_.fuses) return {};
    PreparedProduct product = inner_->Prepare(shape, algorithm, dead, stream);
    epilogues_[product.id] = shape.epilogue;
    return product;
  }
  void Multiply(int product, const kernels::MatmulArgs& args, Stream stream) override {
    kernels::MatmulArgs planted = args;
    const kernels::Epilogue epilogue = epilogues_.at(product);
    if (epilogue != kernels::Epilogue::kNone && epilogue == plant_.wrong_aux) planted.aux = args.c;
    if (rank_ == plant_.slow_rank) FakeDelay(stream, 1e-3);
    inner_->Multiply(product, planted, stream);
  }

 private:
  const int rank_;
  const Plant plant_;
  int made_ = 0;
  std::map<int, kernels::Epilogue> epilogues_;  // by product
  Stream hasty_stream_ = nullptr;
  std::mutex mutex_;
  std::set<Event> hasty_events_;  // each stream's events stay its own
};

KeptReport Run(const Program& program, unsigned seed = 1, const Plant& plant = {}) {
  return RunOnCuda(program, {.messages = Messages::kStaged,
                             .seed = seed,
                             .events = plant.events,
                             .around_cuda =
                                 [&plant](int rank, std::unique_ptr<CudaDriver> cuda) {
                                   return std::make_unique<PlantedCuda>(rank, std::move(cuda),
                                                                        plant);
                                 },
                             .after_bind = plant.after_bind});
}

Program SmallPlan(CompileOptions options) {
  options.costs = "f=1";  // the order of a plan does not follow the model's work
  options.job.model = CudaRunModel("gpt2", true);
  return MustCompile(options);
}

}  // namespace

// Each scheme with each family and each type, and each family with each type.
TEST_CASE("every scheme trains on a GPU as on a CPU") {
  bool fp32 = true;
  for (const Scheme& scheme : Schemes()) {
    for (const char* family : {"gpt2", "llama", "qwen3"}) {
      CompareWithCpu({.scheme = std::string(scheme.name),
                      .shape = {2, 4, 0},
                      .job = {.dtype = fp32 ? Dtype::kFp32 : Dtype::kBf16}},
                     family, fp32 ? Messages::kCopies : Messages::kStaged);
      fp32 = !fp32;
    }
    fp32 = !fp32;
  }
}

TEST_CASE("packed documents on a GPU") {
  for (const char* family : {"gpt2", "llama", "qwen3", "mistral"})
    for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
      const Messages messages = dtype == Dtype::kFp32 ? Messages::kCopies : Messages::kStaged;
      const Job job = {.micro_batch_size = 2, .documents = true, .dtype = dtype};
      CompareWithCpu({.scheme = "zb-v", .shape = {2, 4, 0}, .job = job}, family, messages);
      CompareWithCpu({.scheme = "1f1b", .shape = {2, 4}, .passes = "mario", .job = job}, family,
                     messages);
      CompareWithCpu({.scheme = "pipedream-2bw", .shape = {2, 4}, .job = job}, family, messages);
      Job peers = job;
      peers.tp = 2;
      peers.sequence_parallel = true;
      CompareWithCpu({.scheme = "1f1b", .shape = {2, 4}, .replicas = 2, .job = peers}, family,
                     messages);
    }
}

TEST_CASE("replicas, shards, peers and recomputation on a GPU") {
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
    const auto compare = [&](CompileOptions options, const char* family) {
      options.job.dtype = dtype;
      CompareWithCpu(std::move(options), family,
                     dtype == Dtype::kFp32 ? Messages::kStaged : Messages::kCopies);
    };
    compare({.scheme = "1f1b", .shape = {2, 4}, .replicas = 2, .zero = 1}, "gpt2");
    compare({.scheme = "1f1b", .shape = {2, 4}, .passes = "mario"}, "llama");
    compare({.scheme = "1f1b",
             .shape = {2, 4},
             .passes = "mario",
             .job = {.keep = {OperatorKind::kNorm, OperatorKind::kGelu}}},
            "gpt2");
    compare({.scheme = "zb-h1", .shape = {2, 4}, .job = {.keep = {OperatorKind::kSwiGlu}}},
            "qwen3");
    compare({.scheme = "1f1b", .shape = {2, 4}, .job = {.tp = 2}}, "gpt2");
    compare({.scheme = "zb-h1", .shape = {1, 4}, .job = {.tp = 2, .sequence_parallel = true}},
            "llama");
  }
}

TEST_CASE("attention with a window on a GPU") {
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16})
    CompareWithCpu({.scheme = "1f1b", .shape = {2, 4}, .job = {.dtype = dtype}}, "mistral",
                   Messages::kCopies);
}

// Beside a GELU that is fused where there is no adapter, and with weights that are rounded once, as
// they stay as they are.
TEST_CASE("adapters train on a GPU as on a CPU") {
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16})
    for (const char* family : {"gpt2", "llama"}) {
      const auto compare = [&](CompileOptions options, Messages messages) {
        options.job.dtype = dtype;
        options.job.lora = {.rank = 8, .alpha = 8, .targets = {std::string(kAllLinear)}};
        CompareWithCpu(std::move(options), family, messages);
      };
      compare({.scheme = "1f1b", .shape = {2, 4}, .passes = "mario"}, Messages::kCopies);
      compare({.scheme = "zb-h1", .shape = {2, 4}, .replicas = 2, .zero = 1}, Messages::kStaged);
      compare({.scheme = "1f1b", .shape = {1, 4}, .job = {.tp = 2, .sequence_parallel = true}},
              Messages::kCopies);
    }
}

// On the fake, as possibly on a GPU, GELU has other bits with a product than alone. So what RE
// recomputes has the bits of a forward that saves everything only if the same kernels compute it.
TEST_CASE("products with GELU have the same bits whatever is made again") {
  using Kinds = std::vector<OperatorKind>;
  const Kinds kept = GENERATE(Kinds{}, Kinds{OperatorKind::kGelu});
  for (const Kinds& again : {Kinds{}, Kinds{OperatorKind::kResidual, OperatorKind::kNorm},
                             Kinds{OperatorKind::kLinear}}) {
    std::vector<KeptReport> runs;
    for (const char* passes : {"apply-checkpoint", "mario", "", "split-backward"}) {
      CompileOptions options{.scheme = "1f1b", .shape = {2, 4}};
      options.job.dtype = Dtype::kBf16;
      options.job.model = CudaRunModel("gpt2", true);
      options.passes = passes;
      options.job.recompute = again;
      options.job.keep = kept;
      if (!again.empty() && runs.size() == 2) break;  // those without RE have no such option
      INFO(passes << " of " << TextOf(again, kRecomputeNames) << ", but "
                  << TextOf(kept, kKeepNames));
      runs.push_back(Run(MustCompile(options)));
      REQUIRE(runs.back().status.ok());
      CHECK(Difference(runs.back(), runs.front()) == 0);
    }
  }
}

TEST_CASE("products with GELU are asked for of two bytes, and what they save matters") {
  CompileOptions options{.scheme = "1f1b", .shape = {2, 4}};
  options.job.model = CudaRunModel("gpt2", true);
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
    options.job.dtype = dtype;
    const bool fuses = dtype != Dtype::kFp32;
    const Program program = MustCompile(options);
    const KeptReport fused = Run(program);
    const KeptReport plain = Run(program, 1, {.fuses = false});
    CHECK((Difference(fused, plain) > 0) == fuses);
    CHECK(Difference(fused, plain) < 2e-2);
    for (const auto epilogue : {kernels::Epilogue::kGelu, kernels::Epilogue::kGeluBackward}) {
      const KeptReport wrong = Run(program, 1, {.wrong_aux = epilogue});
      INFO(NameOf(dtype) << " " << static_cast<int>(epilogue));
      CHECK((!wrong.status.ok() || Difference(wrong, fused) > 2e-2) == fuses);
    }
  }
}

TEST_CASE("fp16 trains on a GPU as on a CPU") {
  const auto compare = [](CompileOptions options, const char* family, Messages messages) {
    options.job.dtype = Dtype::kFp16;
    CompareWithCpu(std::move(options), family, messages);
  };
  compare({.scheme = "1f1b", .shape = {2, 4}, .passes = "mario"}, "gpt2", Messages::kCopies);
  compare({.scheme = "zb-v", .shape = {2, 4, 0}}, "llama", Messages::kStaged);
  compare({.scheme = "chimera", .shape = {2, 4}}, "gpt2", Messages::kStaged);
  compare({.scheme = "1f1b", .shape = {2, 4}, .replicas = 2, .zero = 1}, "llama",
          Messages::kCopies);
  compare({.scheme = "zb-h1", .shape = {1, 4}, .job = {.tp = 2, .sequence_parallel = true}},
          "llama", Messages::kCopies);
}

TEST_CASE("fp16 takes what is planned, under every scheme") {
  for (const Scheme& scheme : Schemes()) {
    if (scheme.name.starts_with("pipedream")) continue;  // has no norm, which fp16 needs
    CompileOptions options{.scheme = std::string(scheme.name), .shape = {2, 4, 0}};
    options.job.dtype = Dtype::kFp16;
    const Program program = CompileForCuda(&options, "gpt2");
    const KeptReport report = RunOnCuda(program, {.steps = 1});
    INFO(options.scheme << ": " << report.status.message());
    REQUIRE(report.status.ok());
    CHECK(report.steps.back().peak_bytes == PlannedBytes(program));
  }
}

TEST_CASE("a GPU skips what overflows, as a CPU does") {
  const Program program =
      SmallPlan({.scheme = "1f1b", .shape = {2, 4}, .job = {.dtype = Dtype::kFp16}});
  constexpr double kScale = 0x1p21;
  const KeptReport cpu = RunOnCpu(program, kScale);
  const KeptReport cuda = RunOnCuda(program, {.loss_scale = kScale});
  REQUIRE(cuda.status.ok());
  REQUIRE(cpu.steps[0].skipped);
  REQUIRE_FALSE(cpu.steps[kCudaRunSteps - 1].skipped);
  for (int i = 0; i < kCudaRunSteps; ++i) {
    CHECK(cuda.steps[i].skipped == cpu.steps[i].skipped);
    CHECK(cuda.steps[i].loss_scale == cpu.steps[i].loss_scale);
    CHECK(cuda.steps[i].loss == Approx(cpu.steps[i].loss).epsilon(4e-3));
  }
}

// Weights that AdamW rounds, and those that are rounded when a product takes them, as shards must
// be, have the same bits.
TEST_CASE("a GPU's weights are rounded to the nearest or stochastically, whoever has them") {
  const auto plan = [](const char* scheme, int zero) {
    return SmallPlan({.scheme = scheme,
                      .shape = {2, 4},
                      .replicas = 2,
                      .zero = zero,
                      .job = {.dtype = Dtype::kBf16}});
  };
  const Program whole = plan("1f1b", 0);
  std::vector<KeptReport> runs;
  for (const bool stochastic : {false, true}) {
    const CudaRun run = {.stochastic_rounding = stochastic};
    runs.push_back(RunOnCuda(whole, run));
    REQUIRE(runs.back().status.ok());
    for (const Program& other : {plan("gpipe", 0), plan("1f1b", 1)})
      CHECK(Difference(RunOnCuda(other, run), runs.back()) == 0);
  }
  CHECK(Difference(runs[1], runs[0]) > 0);
  CHECK(Difference(runs[1], runs[0]) < 2e-2);
}

// Whether a run with the plant gives a wrong result, in some order of the streams.
bool Found(const Program& program, const KeptReport& right, const Plant& plant) {
  for (unsigned seed : {1, 2, 3, 4, 5}) {
    const KeptReport wrong = Run(program, seed, plant);
    if (!wrong.status.ok()) return true;
    for (size_t i = 0; i < right.steps.size(); ++i)
      if (wrong.steps[i].loss != right.steps[i].loss) return true;
  }
  return false;
}

TEST_CASE("work that is not waited for, and bytes used again too early, are found") {
  const Program program = SmallPlan({.scheme = "1f1b", .shape = {2, 8}});
  const KeptReport right = Run(program);
  REQUIRE(right.status.ok());
  CHECK_FALSE(Found(program, right, {}));
  constexpr int kMessagesOut = 3;  // after those that fill, compute and reduce (cuda_device.cc)
  CHECK(Found(program, right, {.hasty = kMessagesOut}));
  // Gradients of later micro-batches, of which the last device has many, arrive while the first one
  // still computes with earlier ones.
  const Program many = SmallPlan({.scheme = "gpipe", .shape = {2, 8}});
  const KeptReport right_of_many = Run(many);
  REQUIRE(right_of_many.status.ok());
  constexpr int kFirst = 0;
  const auto too_early = [](int rank, BoundList* list, auto*) {
    for (size_t i = 0; rank == kFirst && i < list->list.size(); ++i)
      if (list->list[i].op == Op::kRecvGrad) list->waits_for[i].index = -1;
  };
  CHECK(Difference(Run(many, 1, {.slow_rank = kFirst}), right_of_many) == 0);
  CHECK(Found(many, right_of_many, {.slow_rank = kFirst, .after_bind = too_early}));
}

// Either plan runs on either device.
TEST_CASE("a plan that counts a CPU's memory takes what a GPU needs before the first step") {
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
    CompileOptions options{.scheme = "1f1b", .shape = {2, 4}};
    options.job.dtype = dtype;
    const Program for_cpu = SmallPlan(options);
    options.job.backend = DeviceKind::kCuda;
    const Program for_gpu = SmallPlan(options);
    const KeptReport other = RunOnCuda(for_cpu, {}), own = RunOnCuda(for_gpu, {});
    REQUIRE(other.status.ok());
    REQUIRE(own.status.ok());
    CHECK(Difference(other, own) == 0);
    CHECK(Difference(RunOnCpu(for_gpu), RunOnCpu(for_cpu)) == 0);
    Program added = for_cpu;
    const std::vector<int64_t> more = AddRegions(DeviceKind::kCuda, &added);
    CHECK(other.steps.back().peak_bytes == PlannedBytes(added));
    for (size_t rank = 0; rank < more.size(); ++rank) {
      CHECK(more[rank] > 0);
      // The memory is the limit: one byte less is an error before the first step.
      CHECK(RunOnCuda(for_cpu, {.memory = PlannedBytes(added)[rank]}).status.ok() ==
            (PlannedBytes(added)[rank] == std::ranges::max(PlannedBytes(added))));
    }
    const int64_t needs = std::ranges::max(PlannedBytes(for_gpu));
    CHECK(RunOnCuda(for_gpu, {.memory = needs}).status.ok());
    const KeptReport fails = RunOnCuda(for_gpu, {.memory = needs - 1});
    CHECK(fails.steps.empty());
    CHECK_THAT(
        fails.status.message(),
        Catch::EndsWith(fmt::format("{} bytes more of the GPU's memory: out of memory", needs)));
  }
}

// The bytes of a model's weights.
std::vector<char> Weights(const std::string& model) {
  std::ifstream file(model + "/model.safetensors", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("a GPU without the memory, and one that fails, are an error and no loss") {
  const Program program = SmallPlan({.scheme = "1f1b", .shape = {2, 4}});
  CHECK(Run(program, 1, {.bytes = 1000}).status.message() == "the plan takes too many bytes");
  const Folder folder;
  const auto run = [&](int64_t events, const std::string& model) {
    return RunOnCuda(
        program, {.messages = Messages::kStaged, .steps = 2, .events = events, .export_to = model});
  };
  const KeptReport right = run(INT64_MAX, folder / "right");
  REQUIRE(right.status.ok());
  int64_t events = 1;  // up to one more than the whole run has
  for (;; events += 10) {
    const std::string model = folder / std::to_string(events);
    const KeptReport failed = run(events, model);
    CHECK(std::filesystem::exists(model) == failed.status.ok());
    INFO(events << ": " << failed.status.message());
    for (size_t i = 0; i < failed.steps.size(); ++i)
      CHECK(failed.steps[i].loss == right.steps[i].loss);
    if (failed.status.ok()) {
      CHECK((Weights(model) == Weights(folder / "right")));
      break;
    }
    CHECK_THAT(failed.status.message(), Catch::Contains("CUDA: an error"));
  }
  CHECK(events > 100);
}

// Each ends some time after the previous one, whatever comes between them.
TEST_CASE("a step's time is its own where validations come between") {
  const Program program = SmallPlan({.scheme = "1f1b", .shape = {2, 4}});
  const KeptReport report = RunOnCuda(program, {.validates = true});
  REQUIRE(report.steps.size() == kCudaRunSteps);
  std::vector<double> seconds;
  for (const StepReport& step : report.steps) seconds.push_back(step.seconds);
  std::sort(seconds.begin(), seconds.end());
  CHECK(seconds.front() > seconds[kCudaRunSteps / 2] / 20);
}

TEST_CASE("a build without CUDA says so") {
  const Folder empty;
  CHECK(OpenCuda(empty / ".").status.message() ==
        "--backend cuda: not in this build (cpu, or build with --config=cuda)");
  CHECK(OpenNccl(empty / ".").status.message() ==
        "--transport nccl: not in this build (shm or mpi, or build with --config=cuda where NCCL "
        "is)");
}

TEST_CASE("what CUDA would not tell is an error on the fake") {
  std::vector<std::byte> host(64);
  const auto cuda = MakeFakeCuda({});
  std::byte* device = *cuda->Allocate(64);
  const CudaDriver::Stream stream = cuda->MakeStream();
  cuda->Copy(device, *cuda->TakePinned(64), 64, stream);
  CHECK(cuda->status().ok());
  cuda->Copy(device, host.data(), 64, stream);
  CHECK(cuda->status().message() ==
        "CUDA: a copy of 64 bytes at memory that is not the device's, nor pinned");
  const auto other = MakeFakeCuda({});
  other->WaitFor(other->MakeStream(), other->MakeEvent());
  CHECK(other->status().message() == "CUDA: a stream waits for an event that was never recorded");
}

TEST_CASE("a GPU computes the same bits in every order of its streams") {
  const Program program = SmallPlan({.scheme = "chimera", .shape = {2, 4}});
  const KeptReport one = Run(program, 1);
  for (unsigned seed : {2, 3}) {
    const KeptReport other = Run(program, seed);
    REQUIRE(other.status.ok());
    CHECK(Difference(other, one) == 0);
  }
}

}  // namespace pp
