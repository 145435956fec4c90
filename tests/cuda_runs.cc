#include "tests/cuda_runs.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <mutex>

#include "runtime/device/cuda/cuda_device.h"
#include "schema/proof/verify.h"
#include "schema/semantics/regions.h"
#include "tests/fake_nccl.h"
#include "tests/folder.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

TrainOptions Options(const Program& program) {
  TrainOptions options;
  options.data = {program.job->documents ? SharedLines() : SharedText()};
  options.documents = program.job->documents;
  if (options.documents) options.end_of_text = '\n';
  options.optimizer.learning_rate = 1e-3;
  options.optimizer.grad_clip = program.clip ? 1 : 0;
  options.stall_timeout = 60;
  return options;
}

// Between processes there are no copies from one's memory to the other's.
class Apart : public Transport {
 public:
  explicit Apart(Transport* inner)
      : Transport(inner->rank(), inner->ranks(), inner->bell().words()), inner_(*inner) {}
  Status Start(const Port& port, void* data, int64_t bytes) override {
    return inner_.Start(port, data, bytes);
  }
  Status Test(const Port& port, bool* over) override { return inner_.Test(port, over); }
  bool polls() const override { return inner_.polls(); }
  void Settle(double seconds) override { inner_.Settle(seconds); }

 private:
  Transport& inner_;
};

}  // namespace

ModelConfig CudaRunModel(const std::string& family, bool tied) {
  return SmallModel(family, tied, /*layers=*/4, /*positions=*/4);
}

int StepsToCompare(const Program& program) { return program.MakesVersions() ? kCudaRunSteps : 2; }

Result<nccl::Needs> ProveForNccl(const Program& program, const nccl::Terms& terms) {
  PP_RETURN_IF_ERROR(Verify(program, Depth::kPlan));
  return nccl::Prove(program, terms);
}

KeptReport RunOnCpu(const Program& plan, std::optional<double> loss_scale, int steps) {
  Program program = plan;
  AddRegions(DeviceKind::kCpu, &program);
  TrainOptions options = Options(program);
  options.optimizer.steps = steps;
  options.optimizer.loss_scale = loss_scale.value_or(8192);
  return TrainAndKeep(program, options);
}

KeptReport RunOnCuda(const Program& plan, const CudaRun& run) {
  Program program = plan;
  AddRegions(DeviceKind::kCuda, &program);
  TrainOptions options = Options(program);
  options.optimizer.steps = run.steps;
  options.optimizer.loss_scale = run.loss_scale.value_or(8192);
  std::shared_ptr<FakeNcclWorld> world;
  if (run.messages == Messages::kNccl) {
    options.nccl = run.sharings ? *run.sharings : ProveForNccl(program, {})->sharings;
    world = MakeFakeNcclWorld(TopologyOf(program).ranks());
  }
  if (run.messages == Messages::kStaged)
    options.wrap_transport = [](Transport* inner) { return std::make_unique<Apart>(inner); };
  std::mutex noting;
  options.make_device = [&](int rank, const DeviceBells& bells) {
    auto cuda = MakeFakeCuda({.seed = run.seed * 100 + rank,
                              .memory = run.memory,
                              .events = run.events,
                              .hardware_queues = run.hardware_queues,
                              .room = run.room,
                              .refuses = run.refuses,
                              .late = run.late});
    if (run.around_cuda) cuda = run.around_cuda(rank, std::move(cuda));
    auto nccl = world ? MakeFakeNccl(world) : nullptr;
    if (run.around_nccl) nccl = run.around_nccl(rank, std::move(nccl));
    CudaDeviceArgs args{
        .bells = bells, .nccl = std::move(nccl), .stochastic_rounding = run.stochastic_rounding};
    if (run.note)
      args.note = [&](const std::string& note) {
        std::lock_guard<std::mutex> lock(noting);
        run.note(note);
      };
    args.experiments.poll = std::chrono::microseconds(200);  // emulated kernels take that long
    return MakeCudaDevice(std::move(cuda), std::move(args));
  };
  if (run.validates) {
    options.val_data = options.data;
    options.val_every = 1;
    options.val_batches = 2;
    options.sample = 3;
  }
  options.after_bind = run.after_bind;
  std::optional<ModelFolder> model;
  if (!run.export_to.empty()) {
    Result<ModelFolder> opened = ModelFolder::Open(run.export_to);
    REQUIRE(opened.ok());
    model.emplace(std::move(*opened));
    options.exports = true;
    options.export_to = &*model;
  }
  return TrainAndKeep(program, options);
}

double Difference(const KeptReport& a, const KeptReport& b) {
  REQUIRE(!a.steps.empty());
  REQUIRE(a.steps.size() == b.steps.size());
  double worst = 0;
  const auto add = [&](double x, double y) {
    worst = std::isfinite(x / y) ? std::max(worst, std::abs(x / y - 1)) : HUGE_VAL;
  };
  for (size_t i = 0; i < a.steps.size(); ++i) {
    add(a.steps[i].loss, b.steps[i].loss);
    if (a.steps[i].grad_norm) add(*a.steps[i].grad_norm, *b.steps[i].grad_norm);
  }
  return worst;
}

std::vector<int64_t> PlannedBytes(const Program& program) {
  const Topology topology = TopologyOf(program);
  std::vector<int64_t> bytes;
  for (int rank = 0; rank < topology.ranks(); ++rank)
    bytes.push_back(program.lists[topology.PlaceOf(rank).device].arena_bytes);
  return bytes;
}

Program CompileForCuda(CompileOptions* options, const std::string& family) {
  const bool versions = options->scheme.starts_with("pipedream");
  options->job.model = CudaRunModel(family, !versions);
  options->clip = !versions;
  options->job.backend = DeviceKind::kCuda;
  return MustCompile(*options);
}

void CompareWithCpu(CompileOptions options, const std::string& family, Messages messages) {
  const Program program = CompileForCuda(&options, family);
  INFO(options.scheme << " " << family << " " << NameOf(options.job.dtype) << " tp "
                      << options.job.tp << " dp " << options.replicas);
  options.job.backend =
      DeviceKind::kCpu;  // without a workspace of products, which takes long to fill
  const int steps = StepsToCompare(program);
  const KeptReport cpu = RunOnCpu(MustCompile(options), {}, steps),
                   cuda = RunOnCuda(program, {.messages = messages, .steps = steps});
  INFO(cuda.status.message());
  REQUIRE(cpu.status.ok());
  REQUIRE(cuda.status.ok());
  REQUIRE(static_cast<int>(cuda.steps.size()) == steps);
  CHECK(cuda.steps.back().peak_bytes == PlannedBytes(program));
  CHECK(Difference(cuda, cpu) < (options.job.dtype == Dtype::kFp32   ? 1e-5
                                 : options.job.dtype == Dtype::kFp16 ? 4e-3
                                                                     : 2e-2));
}

}  // namespace pp
