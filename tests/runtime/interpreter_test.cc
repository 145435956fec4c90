// The compute lane of a plan for one device, without other ranks: what the executor is called with,
// and the contents of a step's result.
#include "runtime/plan/interpreter.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "compiler/compile.h"
#include "runtime/comm/in_process_transport.h"
#include "runtime/device/cpu_device.h"
#include "schema/text.h"
#include "tests/models.h"

namespace pp {
namespace {

constexpr int kMicros = 3, kBatch = 2, kLength = 8;

Program MustCompile(const std::string& scheme) {
  ModelConfig model = Gpt2Model({.vocab_size = 128,
                                 .max_positions = kLength,
                                 .hidden_size = 8,
                                 .layers = 2,
                                 .heads = 2,
                                 .intermediate_size = 16});
  model.tied = false;
  // Without a norm there is no other lane.
  auto program = Compile({.scheme = scheme,
                          .shape = {1, kMicros},
                          .clip = false,
                          .job = {.model = model, .micro_batch_size = kBatch}});
  INFO(program.status().message());
  REQUIRE(program.ok());
  return std::move(*program);
}

Dataset MakeData() {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("interpreter_test." + std::to_string(getpid()) + ".txt"))
                               .string();
  std::ofstream out(path, std::ios::binary);
  for (int i = 0; i < 10000; ++i) out.put(static_cast<char>('a' + i % 26));
  out.close();
  auto data = Dataset::Open({path}, {.vocab_size = 128, .sequence_length = kLength});
  std::filesystem::remove(path);  // it is mapped
  REQUIRE(data.ok());
  return std::move(*data);
}

// Keeps the calls; a loss is the index of its call.
struct KeepingExecutor : StageExecutor {
  void Run(const StageCall& call) override {
    calls.push_back(call);
    if (call.op == Op::kForward) *call.loss = static_cast<double>(calls.size());
    if (call.op == Op::kForward) tokens.push_back(call.tokens[0]);
  }
  std::vector<StageCall> calls;
  std::vector<int32_t> tokens;
};

class Fixture {
 public:
  explicit Fixture(const std::string& scheme, int replicas = 1, int replica = 0)
      : program(MustCompile(scheme)),
        data(MakeData()),
        batches({.dataset = &data,
                 .replicas = replicas,
                 .microbatches = kMicros,
                 .micro_batch_size = kBatch,
                 .sequence_length = kLength}),
        device(MakeCpuDevice()),
        transports_(MakeInProcessTransports(1)) {
    BodyWalk walk;
    REQUIRE(WalkBody(program, 0, &walk).ok());
    REQUIRE(device->Allocate(program.lists[0].arena_bytes).ok());
    bound = Bind(program, 0, std::move(walk), *device);
    lanes_ = std::make_unique<Lanes>(Lanes::Args{.list = &bound,
                                                 .topology = &topology_,
                                                 .transport = transports_[0].get(),
                                                 .device = device.get(),
                                                 .compute_bell = &bell_,
                                                 .stop = &stop});
    interpreter = std::make_unique<Interpreter>(Interpreter::Args{.program = &program,
                                                                  .list = &bound,
                                                                  .lanes = lanes_.get(),
                                                                  .device = device.get(),
                                                                  .executor = &executor,
                                                                  .batches = &batches,
                                                                  .replica = replica,
                                                                  .stop = &stop});
  }

  std::vector<StageCall> CallsOf(Op op) const {
    std::vector<StageCall> found;
    for (const StageCall& call : executor.calls)
      if (call.op == op) found.push_back(call);
    return found;
  }

  const Program program;
  const Dataset data;
  const Batches batches;
  const std::unique_ptr<Device> device;
  BoundList bound;
  KeepingExecutor executor;
  std::atomic<bool> stop{false};
  std::unique_ptr<Interpreter> interpreter;

 private:
  const Topology topology_;
  Bell bell_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::unique_ptr<Lanes> lanes_;
};

}  // namespace

TEST_CASE("an executor gets each instruction with its step, sequences and part of the loss") {
  Fixture f("gpipe", 2, 1);
  for (int64_t step = 1; step <= 3; ++step) REQUIRE(f.interpreter->Run({step}).ok());
  const auto forwards = f.CallsOf(Op::kForward), backwards = f.CallsOf(Op::kBackward);
  REQUIRE(forwards.size() == 3 * kMicros);
  REQUIRE(backwards.size() == 3 * kMicros);
  for (int k = 0; k < 3 * kMicros; ++k) {
    const int64_t step = 1 + k / kMicros;
    const int m = k % kMicros;
    for (const StageCall& call : {forwards[k], backwards[k]}) {
      CHECK(call.step == step);
      CHECK(call.micro == m);
      CHECK(call.first_sequence == (((step - 1) * 2 + 1) * kMicros + m) * kBatch);
      CHECK(call.per_token == 1.0 / (2 * kMicros * kBatch * kLength));
    }
    CHECK(f.executor.tokens[k] == 'a' + forwards[k].first_sequence * kLength % 26);
  }
  for (const StageCall& call : f.CallsOf(Op::kStep)) {
    CHECK(call.update == call.step);
    CHECK(call.weights == call.weights_old);
  }
}

TEST_CASE("a step's result has all its losses, and who made them") {
  Fixture f("gpipe");
  for (int64_t step = 1; step <= 6; ++step) {
    const size_t before = f.executor.calls.size();
    REQUIRE(f.interpreter->Run({step}).ok());
    // The step before is kept, too.
    const StepResult& result = f.interpreter->result(step);
    CHECK(result.step == step);
    CHECK(f.device->compute().Done(result.end));
    CHECK(result.end == f.device->compute().last());
    CHECK(result.norm == 0);  // none is taken
    if (step > 1) CHECK(f.interpreter->result(step - 1).step == step - 1);
    for (int m = 0; m < kMicros; ++m) {
      CHECK(result.losses[m] == static_cast<double>(before + m + 1));  // gpipe: forwards first
      CHECK(ToText(f.bound.list[result.made_by[m]]) == "FW s0 m" + std::to_string(m));
    }
  }
  CHECK(f.interpreter->executed() == 6 * static_cast<int64_t>(f.bound.compute.size()));
  CHECK(f.interpreter->time().instructions == 6 * static_cast<int64_t>(f.bound.list.size()));
}

TEST_CASE("2BW: a step makes the version that its successor's successor uses") {
  Fixture f("pipedream-2bw");
  for (int64_t step = 1; step <= 4; ++step) REQUIRE(f.interpreter->Run({step}).ok());
  const auto steps = f.CallsOf(Op::kStep), forwards = f.CallsOf(Op::kForward);
  REQUIRE(steps.size() == 4);
  for (size_t k = 0; k < 4; ++k) {
    CHECK(steps[k].update == static_cast<int64_t>(k) + 1);
    CHECK(steps[k].weights != steps[k].weights_old);
    if (k > 0) CHECK(steps[k].weights_old == steps[k - 1].weights);
    // W(max(0, k-1)): the first ones are where the first update starts from.
    CHECK(forwards[k * kMicros].weights == (k < 2 ? steps[0].weights_old : steps[k - 2].weights));
  }
}

TEST_CASE("PipeDream on one device: one version, an update a micro-batch") {
  Fixture f("pipedream");
  for (int64_t step = 1; step <= 3; ++step) REQUIRE(f.interpreter->Run({step}).ok());
  const auto steps = f.CallsOf(Op::kStep);
  REQUIRE(steps.size() == 3 * kMicros);
  for (size_t k = 0; k < steps.size(); ++k) {
    CHECK(steps[k].update == static_cast<int64_t>(k) + 1);
    CHECK(steps[k].step == static_cast<int64_t>(k) / kMicros + 1);
    CHECK(steps[k].weights == steps[0].weights);
    CHECK(steps[k].norm == nullptr);
  }
  for (const StageCall& call : f.CallsOf(Op::kBackward)) {
    CHECK(call.accumulate == kernels::Update::kSet);
    CHECK(call.weights == steps[0].weights);
  }
}

TEST_CASE("who is told to stop leaves at once, without an error") {
  Fixture f("gpipe");
  f.stop.store(true);
  CHECK(f.interpreter->Run({1}).ok());
  CHECK(f.executor.calls.empty());
}

}  // namespace pp
