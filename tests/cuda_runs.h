// Runs on the CPU and on fakes of CUDA, and how far their reports differ.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "compiler/compile.h"
#include "runtime/device/cuda/driver.h"
#include "runtime/device/cuda/nccl.h"
#include "schema/nccl/prove.h"
#include "tests/fake_cuda.h"
#include "tests/kept_report.h"

namespace pp {

// Each of a scheme's weight versions on two devices is written twice.
inline constexpr int kCudaRunSteps = 4;
// Enough for this plan: two, in which the second sees what the first did, but for versions.
int StepsToCompare(const Program& program);

// How messages between GPUs travel: copies from one GPU's memory to another's, pinned memory and
// the hosts' transport, or NCCL.
enum class Messages { kCopies, kStaged, kNccl };

struct CudaRun {
  Messages messages = Messages::kCopies;
  int steps = kCudaRunSteps;
  unsigned seed = 1;           // of the order of streams
  int64_t memory = INT64_MAX;  // of each rank's GPU
  int64_t events = INT64_MAX;  // before the driver fails
  int hardware_queues = 32;
  size_t room = 1000;  // in a stream
  // As in FakeCudaArgs.
  std::function<bool(const kernels::MatmulShape&)> refuses;
  FakeCudaArgs::Late late = FakeCudaArgs::Late::kNothing;
  std::function<std::unique_ptr<CudaDriver>(int rank, std::unique_ptr<CudaDriver>)> around_cuda;
  std::function<std::unique_ptr<Nccl>(int rank, std::unique_ptr<Nccl>)> around_nccl;
  std::function<void(int rank, BoundList*, std::vector<CollectiveArgs>*)> after_bind;
  bool validates = false;  // after each step, and draws a sample at the end
  std::string export_to;   // the trained model; empty: nowhere
  std::optional<double> loss_scale;
  bool stochastic_rounding = false;
  std::function<void(const std::string&)> note;  // of all ranks, one at a time
  // Of NCCL; by default the fewest communicators that the plan's proof finds.
  std::optional<nccl::Sharings> sharings;
};

ModelConfig CudaRunModel(const std::string& family, bool tied);

// What the plan's proof for NCCL finds on these terms.
Result<nccl::Needs> ProveForNccl(const Program& program, const nccl::Terms& terms);

// `loss_scale`: of fp16's first step; 8192, with which none is skipped.
KeptReport RunOnCpu(const Program& program, std::optional<double> loss_scale = {},
                    int steps = kCudaRunSteps);
KeptReport RunOnCuda(const Program& program, const CudaRun& run);

// The largest relative difference of losses and norms, over equally many steps. REQUIRES: there are
// some.
double Difference(const KeptReport& a, const KeptReport& b);

// What each rank of a run of this plan takes, as the plan counts it.
std::vector<int64_t> PlannedBytes(const Program& program);

// For a GPU's memory, with clipping and tied embeddings if the scheme supports them.
Program CompileForCuda(CompileOptions* options, const std::string& family);

// Runs on both, with exactly the plan's memory on the GPU: fp32 within 1e-5, bf16 within 2e-2, fp16
// within 4e-3, which is the effect of different rounding in this many steps.
void CompareWithCpu(CompileOptions options, const std::string& family, Messages messages);

}  // namespace pp
