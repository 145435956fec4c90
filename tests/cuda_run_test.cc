// The CUDA backend as a whole, without a GPU: its device, queues, kernels and staged messages over
// a fake of CUDA (fake_cuda.h) train what the CPU trains.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <mutex>
#include <set>

#include "compiler/scheme.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/cuda_plugin.h"
#include "runtime/plan/binding.h"
#include "schema/text.h"
#include "tests/fake_cuda.h"
#include "tests/folder.h"
#include "tests/kept_report.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

constexpr int kSteps = 5;

ModelConfig TinyModel(const std::string& family, bool tied) {
  return SmallModel(family, tied, /*layers=*/4, /*positions=*/4, /*llama_heads=*/4);
}

std::string DataFile() {
  static const Folder folder;
  static const std::string path = folder.WriteText("text.txt", 4000);
  return path;
}

enum class On { kCpu, kFakeCuda };

struct Plant {
  // The events of this stream, counted as they are made, are taken for reached when they are
  // recorded.
  int hasty = -1;
  int64_t bytes = INT64_MAX;   // that one piece of memory may have
  int64_t events = INT64_MAX;  // before everything fails
  std::function<void(int rank, BoundList*, std::vector<CollectiveArgs>*)> after_bind;
};

class PlantedCuda : public CudaDriver {
 public:
  PlantedCuda(std::unique_ptr<CudaDriver> inner, const Plant& plant)
      : inner_(std::move(inner)), plant_(plant) {}

  void Use() override { inner_->Use(); }
  Result<std::byte*> Take(int64_t bytes) override {
    if (bytes > plant_.bytes) return Status::Invalid("the plan takes too many bytes");
    return inner_->Take(bytes);
  }
  Result<std::byte*> TakePinned(int64_t bytes) override { return inner_->TakePinned(bytes); }
  Stream MakeStream() override {
    const Stream stream = inner_->MakeStream();
    if (made_++ == plant_.hasty) hasty_stream_ = stream;
    return stream;
  }
  Event MakeEvent() override { return inner_->MakeEvent(); }
  void Record(Event event, Stream stream) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stream == hasty_stream_) hasty_events_.insert(event);
    }
    inner_->Record(event, stream);
  }
  void WaitFor(Stream stream, Event event) override { inner_->WaitFor(stream, event); }
  bool Reached(Event event) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return hasty_events_.contains(event) || inner_->Reached(event);
  }
  double SecondsBetween(Event first, Event second) override {
    return inner_->SecondsBetween(first, second);
  }
  void Copy(void* to, const void* from, int64_t bytes, Stream stream) override {
    inner_->Copy(to, from, bytes, stream);
  }
  void Fill(void* at, uint32_t word, int64_t words, Stream stream) override {
    inner_->Fill(at, word, words, stream);
  }
  int Prepare(const kernels::MatmulShape& shape) override { return inner_->Prepare(shape); }
  void Multiply(int product, const kernels::MatmulArgs& args, Stream stream) override {
    inner_->Multiply(product, args, stream);
  }
  Status status() const override { return inner_->status(); }

 private:
  const std::unique_ptr<CudaDriver> inner_;
  const Plant plant_;
  int made_ = 0;
  Stream hasty_stream_ = nullptr;
  std::mutex mutex_;
  std::set<Event> hasty_events_;  // each stream's events stay its own
};

KeptReport Run(const Program& program, On on, unsigned seed = 1, const Plant& plant = {}) {
  TrainOptions options;
  options.data = DataFile();
  options.optimizer.steps = kSteps;
  options.optimizer.learning_rate = 1e-3;
  options.optimizer.grad_clip = program.clip ? 1 : 0;
  options.stall_timeout = 60;
  if (on == On::kFakeCuda)
    options.make_device = [seed, &plant](int rank, const DeviceBells& bells) {
      return MakeCudaDevice(
          std::make_unique<PlantedCuda>(MakeFakeCuda(seed * 100 + rank, plant.events), plant),
          bells);
    };
  options.after_bind = plant.after_bind;
  return TrainAndKeep(program, options);
}

// The largest relative difference of losses and norms.
double Difference(const KeptReport& a, const KeptReport& b) {
  double worst = 0;
  for (size_t i = 0; i < a.steps.size(); ++i) {
    worst = std::max(worst, std::abs(a.steps[i].loss - b.steps[i].loss) / b.steps[i].loss);
    if (a.steps[i].grad_norm)
      worst = std::max(worst, std::abs(*a.steps[i].grad_norm / *b.steps[i].grad_norm - 1));
  }
  return worst;
}

void Compare(CompileOptions options, const std::string& family) {
  const bool versions = options.scheme.starts_with("pipedream");
  options.model = TinyModel(family, !versions);
  options.clip = !versions;
  INFO(options.scheme << " " << family << " " << NameOf(options.dtype) << " tp " << options.tp
                      << " dp " << options.replicas);
  const Program program = MustCompile(options);
  const KeptReport cpu = Run(program, On::kCpu), cuda = Run(program, On::kFakeCuda);
  INFO(cuda.status.message());
  REQUIRE(cpu.status.ok());
  REQUIRE(cuda.status.ok());
  REQUIRE(cuda.steps.size() == kSteps);
  CHECK(Difference(cuda, cpu) < (options.dtype == Dtype::kFp32 ? 1e-5 : 2e-2));
}

}  // namespace

TEST_CASE("every scheme trains on a GPU as on a CPU") {
  for (const Scheme& scheme : Schemes())
    for (const char* family : {"gpt2", "llama"})
      for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16})
        Compare({.scheme = std::string(scheme.name), .shape = {2, 4, 0}, .dtype = dtype}, family);
}

TEST_CASE("replicas, shards, peers and checkpoints on a GPU") {
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
    Compare({.scheme = "1f1b", .shape = {2, 4}, .replicas = 2, .zero = 1, .dtype = dtype}, "gpt2");
    Compare({.scheme = "1f1b", .shape = {2, 4}, .passes = "mario", .dtype = dtype}, "llama");
    Compare({.scheme = "1f1b", .shape = {2, 4}, .tp = 2, .dtype = dtype}, "gpt2");
    Compare(
        {.scheme = "zb-h1", .shape = {1, 4}, .tp = 2, .sequence_parallel = true, .dtype = dtype},
        "llama");
  }
}

// In how many orders of streams a run with the plant is not the right one.
int Found(const Program& program, const Plant& plant) {
  const KeptReport right = Run(program, On::kFakeCuda);
  REQUIRE(right.status.ok());
  int found = 0;
  for (unsigned seed : {1, 2, 3, 4, 5}) {
    const KeptReport wrong = Run(program, On::kFakeCuda, seed, plant);
    bool same = wrong.status.ok();
    for (size_t i = 0; same && i < right.steps.size(); ++i)
      same = wrong.steps[i].loss == right.steps[i].loss;
    found += same ? 0 : 1;
  }
  return found;
}

TEST_CASE("work that is not waited for, and bytes used again too early, are found") {
  CompileOptions options{.scheme = "1f1b", .shape = {2, 8}};
  options.model = TinyModel("gpt2", true);
  const Program program = MustCompile(options);
  CHECK(Found(program, {}) == 0);
  constexpr int kMessagesOut = 3;  // behind those that fill, compute and reduce (cuda_device.cc)
  CHECK(Found(program, {.hasty = kMessagesOut}) > 0);
  const auto too_early = [](int rank, BoundList* list, auto*) {
    for (size_t i = 0; rank == 1 && i < list->list.size(); ++i)
      if (ToText(list->list[i]) == "RECV_act s0 m4 from d0") list->waits_for[i].index = -1;
  };
  CHECK(Found(program, {.after_bind = too_early}) > 0);
}

TEST_CASE("a GPU without the memory, and one that fails, are an error and no loss") {
  CompileOptions options{.scheme = "1f1b", .shape = {2, 4}};
  options.model = TinyModel("gpt2", true);
  const Program program = MustCompile(options);
  CHECK(Run(program, On::kFakeCuda, 1, {.bytes = 1000}).status.message() ==
        "the plan takes too many bytes");
  const KeptReport right = Run(program, On::kFakeCuda);
  int64_t events = 1;  // to one more than the whole run has
  for (;; events += 15) {
    const KeptReport failed = Run(program, On::kFakeCuda, 1, {.events = events});
    INFO(events << ": " << failed.status.message());
    for (size_t i = 0; i < failed.steps.size(); ++i)
      CHECK(failed.steps[i].loss == right.steps[i].loss);
    if (failed.status.ok()) break;
    CHECK_THAT(failed.status.message(), Catch::EndsWith("CUDA: an error"));
  }
  CHECK(events > 100);
}

TEST_CASE("a build without CUDA says so") {
  const Folder empty;
  CHECK(OpenCuda(empty / ".").status.message() ==
        "--backend: 'cuda' is not in this build (cpu, or build with --config=cuda)");
}

TEST_CASE("what CUDA would not tell is an error on the fake") {
  std::vector<std::byte> host(64);
  const auto cuda = MakeFakeCuda(1);
  std::byte* device = *cuda->Take(64);
  const CudaDriver::Stream stream = cuda->MakeStream();
  cuda->Copy(device, *cuda->TakePinned(64), 64, stream);
  CHECK(cuda->status().ok());
  cuda->Copy(device, host.data(), 64, stream);
  CHECK(cuda->status().message() ==
        "CUDA: a copy of 64 bytes at memory that is not the device's, nor pinned");
  const auto other = MakeFakeCuda(1);
  other->WaitFor(other->MakeStream(), other->MakeEvent());
  CHECK(other->status().message() == "CUDA: a stream waits for an event that was never recorded");
}

TEST_CASE("a GPU computes the same bits in every order of its streams") {
  CompileOptions options{.scheme = "chimera", .shape = {2, 4}};
  options.model = TinyModel("gpt2", true);
  const Program program = MustCompile(options);
  const KeptReport one = Run(program, On::kFakeCuda, 1);
  for (unsigned seed : {2, 3}) {
    const KeptReport other = Run(program, On::kFakeCuda, seed);
    REQUIRE(other.status.ok());
    for (size_t i = 0; i < one.steps.size(); ++i) CHECK(one.steps[i].loss == other.steps[i].loss);
  }
}

}  // namespace pp
