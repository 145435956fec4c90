// The CUDA backend as a whole, without a GPU: its device, queues, kernels and staged messages over
// a fake of CUDA (fake_cuda.h) train what the CPU trains.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>

#include "compiler/scheme.h"
#include "runtime/device/cuda/cuda_device.h"
#include "tests/fake_cuda.h"
#include "tests/folder.h"
#include "tests/kept_report.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

constexpr int kSteps = 5;

ModelConfig TinyModel(const std::string& family, bool tied) {
  ModelConfig model = Gpt2Model({.vocab_size = 65,
                                 .max_positions = 4,
                                 .hidden_size = 16,
                                 .layers = 4,
                                 .heads = 2,
                                 .intermediate_size = 32});
  model.embedding_dropout = model.attention_dropout = model.residual_dropout = 0.1f;
  model.tied = tied;
  if (family == "llama") {
    model.family = FindFamily(family);
    model.embedding_dropout = model.residual_dropout = 0;
    model.heads = 4;
    model.kv_heads = 2;
    model.head_dim = 4;
  }
  return model;
}

std::string DataFile() {
  static const Folder folder;
  static const std::string path = folder.WriteText("text.txt", 4000);
  return path;
}

enum class On { kCpu, kFakeCuda };

KeptReport Run(const Program& program, On on, unsigned seed = 1) {
  TrainOptions options;
  options.data = DataFile();
  options.optimizer.steps = kSteps;
  options.optimizer.learning_rate = 1e-3;
  options.optimizer.grad_clip = program.clip ? 1 : 0;
  options.stall_timeout = 60;
  if (on == On::kFakeCuda)
    options.make_device = [seed](int rank, const DeviceBells& bells) {
      return MakeCudaDevice(MakeFakeCuda(seed * 100 + rank), bells);
    };
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
