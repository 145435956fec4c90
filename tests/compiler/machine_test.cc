// Units, machines, and the costs that follow from a machine and a model.
#include "compiler/machine/machine.h"

#include <catch2/catch.hpp>
#include <cstdio>

#include "compiler/compile.h"
#include "compiler/machine/costs.h"
#include "schema/base/units.h"
#include "schema/model/work.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

TEST_CASE("units") {
  const auto is = [](const char* text, double value, Dimension dimension) {
    INFO(text);
    const auto read = ReadQuantity(text);
    REQUIRE(read);
    CHECK(read->value == Approx(value).epsilon(1e-12));
    CHECK(read->dimension == dimension);
  };
  is("1.5", 1.5, Dimension::kNone);
  is("312e12", 312e12, Dimension::kNone);
  is("10ms", 0.01, Dimension::kTime);
  is("5us", 5e-6, Dimension::kTime);
  is("3s", 3, Dimension::kTime);
  is("40GiB", 40.0 * (1 << 30), Dimension::kBytes);
  is("40g", 40.0 * (1 << 30), Dimension::kBytes);
  is("24GB", 24e9, Dimension::kBytes);
  is("7B", 7, Dimension::kBytes);
  is("100GB/s", 1e11, Dimension::kBandwidth);
  is("1MiB/s", 1 << 20, Dimension::kBandwidth);
  is("200Gbit/s", 25e9, Dimension::kBandwidth);
  is("312TFLOP/s", 312e12, Dimension::kFlops);
  for (const char* text : {"", "s", "-1", "1 s", "1Gb/s", "1MS", "1iB", "1XB", "nan", "inf",
                           "1e400", "1e308PFLOP/s", "1TFLOPS", "1k/s", "1i"}) {
    INFO(text);
    CHECK(!ReadQuantity(text));
  }
}

ModelConfig TinyGpt2() { return SmallModel("gpt2", false, 4); }

TEST_CASE("numbers are printed with a prefix") {
  CHECK(ToText(Quantity{5e-6, Dimension::kTime}) == "5us");
  CHECK(ToText(Quantity{1, Dimension::kTime}) == "1s");
  CHECK(ToText(Quantity{90, Dimension::kTime}) == "90s");
  CHECK(ToText(Quantity{1e-12, Dimension::kTime}) == "0.001ns");
  CHECK(ToText(Quantity{1555e9, Dimension::kBandwidth}) == "1.555TB/s");
  CHECK(ToText(Quantity{40.0 * (1 << 30), Dimension::kBytes}) == "40GiB");
  CHECK(ToText(Quantity{141e9, Dimension::kBytes}) == "141GB");
  CHECK(ToText(Quantity{7, Dimension::kBytes}) == "7B");
  CHECK(ToText(Quantity{312e12, Dimension::kFlops}) == "312TFLOP/s");
  CHECK(ToText(Quantity{0.25, Dimension::kNone}) == "0.25");
}

// Two devices, a stage each, unless `options` says otherwise.
Program PlanOf(CompileOptions options = {}) {
  if (options.scheme.empty()) options.scheme = "1f1b";
  options.shape = {.devices = 2, .microbatches = 4, .stages_per_device = 0};
  if (!options.job.has_model()) options.job.model = TinyGpt2();
  return MustCompile(options);
}

CostModel MustCost(const Machine& machine, const Program& program) {
  const auto costs = CostsOn(machine, program);
  INFO(costs.status().message());
  REQUIRE(costs.ok());
  return *costs;
}

TEST_CASE("a machine that only computes: operations by its peak, shared by a device's stages") {
  const Machine machine = *MachineOf("2GFLOP/s");
  for (const char* scheme : {"1f1b", "interleaved"}) {
    const Program program = PlanOf({.scheme = scheme});
    const double stages_each = program.stages / 2;
    const CostModel costs = MustCost(machine, program);
    CHECK(costs.seconds);
    for (int s = 0; s < program.stages; ++s) {
      const StageWork work = WorkOf(LayoutStage(*program.job, s), *program.job);
      CHECK(costs.f[s] == Approx(work.forward.operations / 2e9 * stages_each));
      CHECK(costs.r[s] == Approx(work.recompute.operations / 2e9 * stages_each));
      CHECK(costs.bi[s] == Approx(work.input.operations / 2e9 * stages_each));
      CHECK(costs.bw[s] == Approx(work.weight.operations / 2e9 * stages_each));
      CHECK(costs.b[s] == Approx(costs.bi[s] + costs.bw[s]));
      CHECK(costs.comm[s] == 0);
      CHECK(costs.reduce[s] == 0);
    }
  }
}

TEST_CASE("memory, launches and what products and attention reach") {
  const Program program = PlanOf();
  const Job& job = *program.job;
  Machine machine = *MachineOf("1e9");
  const double before = MustCost(machine, program).f[0];
  machine.product = machine.attention = 0.5;
  CHECK(MustCost(machine, program).f[0] == Approx(2 * before));
  machine.attention = 1;
  double products = 0;
  int operators = 0;
  for (const StageOperator& placed : LayoutStage(job, 0).operators) {
    const StageWork work = WorkOf(placed.op, job);
    if (placed.op.kind != OperatorKind::kAttention) products += work.forward.operations;
    operators += work.forward.operations > 0 || work.forward.bytes > 0;
  }
  CHECK(MustCost(machine, program).f[0] == Approx(before + products / 1e9));
  machine.product = 1;
  machine.launch = 3;
  CHECK(MustCost(machine, program).f[0] == Approx(before + 3 * operators));
  // So slow a memory that nothing else counts.
  machine = *MachineOf("1e24");
  machine.memory_bandwidth = 100;
  machine.memory_share = 0.5;
  CHECK(MustCost(machine, program).f[0] ==
        Approx(WorkOf(LayoutStage(job, 0), job).forward.bytes / 50));
}

TEST_CASE("a backward takes the time of what it makes again, and not of what is kept") {
  Machine machine = *MachineOf("1e24");
  machine.launch = 3;
  machine.memory_bandwidth = 100;
  const CostModel none = MustCost(machine, PlanOf());
  CompileOptions options;
  options.job = {.model = TinyGpt2(), .keep = {OperatorKind::kNorm, OperatorKind::kGelu}};
  const Program program = PlanOf(options);
  const CostModel kept = MustCost(machine, program);
  double again = 0, gelu = 0;
  for (const StageOperator& placed : LayoutStage(*program.job, 0).operators) {
    const double time = 3 + WorkOf(placed.op, *program.job).forward.bytes / 100;
    if (placed.op.kind == OperatorKind::kNorm || placed.op.kind == OperatorKind::kGelu)
      again += time;
    if (placed.op.kind == OperatorKind::kGelu) gelu = time;
  }
  CHECK(kept.f[0] == none.f[0]);
  CHECK(kept.bi[0] == none.bi[0]);
  CHECK(none.bw[0] - kept.bw[0] == Approx(again));
  CHECK(none.b[0] - kept.b[0] == Approx(again));
  CHECK(kept.r[0] - none.r[0] == Approx(gelu));  // the last one, whose product RE does not repeat
}

TEST_CASE("messages, reductions and peers take the link that they cross") {
  Machine machine = *MachineOf("1e24");
  machine.node = 4;
  machine.message = 2;
  machine.inside = {1000, 0.5};
  machine.between = {10, 7};
  Job job{.model = TinyGpt2(), .tp = 2};
  // Ranks 0 and 1, 2 and 3: a node. With two replicas, 4 to 7: another.
  const Program one = PlanOf({.job = job});
  const StageLayout layout = LayoutStage(*one.job, 0);
  CostModel costs = MustCost(machine, one);
  CHECK(costs.comm[0] == Approx(2 + layout.act_bytes / 1000.0));
  CHECK(costs.latency[0] == 0.5);
  CHECK(costs.reduce[0] == 0);
  const Program two = PlanOf({.replicas = 2, .job = job});
  costs = MustCost(machine, two);
  CHECK(costs.reduce[0] == Approx(2 * (layout.wgrad_bytes / 2.0 / 10 + 7)));
  // Attention's and the MLP's second products, and the embedding; each in two rounds.
  const int sums = 1 + 2 * layout.layers;
  const double bytes = job.model.max_positions * job.model.hidden_size * 4.0;
  CHECK(costs.f[0] == Approx(sums * 2 * (bytes / 2 / 1000 + 0.5)).epsilon(1e-6));
  CHECK(costs.bi[0] == Approx((sums - 1) * 2 * (bytes / 2 / 1000 + 0.5)).epsilon(1e-6));
  CHECK(costs.bw[0] == Approx(0).margin(1e-6));
  machine.node = 2;  // a device's peers are a node
  CHECK(MustCost(machine, one).comm[0] == Approx(2 + layout.act_bytes / 10.0));
  CHECK(MustCost(machine, one).latency[0] == 7);
  machine.node = 0;
  CHECK(MustCost(machine, two).reduce[0] == Approx(2 * (layout.wgrad_bytes / 2.0 / 1000 + 0.5)));
}

TEST_CASE("an optimizer's step moves weights, gradients and moments, with ZeRO-1 a share of them") {
  Machine machine = *MachineOf("1e24");
  machine.memory_bandwidth = 1000;
  const Program program = PlanOf();
  const auto bytes = static_cast<double>(LayoutStage(*program.job, 0).weights_bytes);
  const auto gradients = static_cast<double>(LayoutStage(*program.job, 0).wgrad_bytes);
  CHECK(MustCost(machine, program).step[0] == Approx((6 * bytes + 2 * gradients) / 1000));
  const Program sharded = PlanOf({.replicas = 2, .zero = 1});
  CHECK(MustCost(machine, sharded).step[0] == Approx((3 * bytes + 1.5 * gradients) / 1000));
}

TEST_CASE("the costs of a plan are the machine's, and simulate reads them back") {
  CompileOptions options{.prices = {.machine = Machines()[1]}};
  options.job = {.model = TinyGpt2(), .dtype = Dtype::kBf16};
  const Program program = PlanOf(options);
  const auto read = CostsOf(program);
  REQUIRE(read.ok());
  const CostModel costs = MustCost(Machines()[1], program);
  CHECK(read->seconds);
  for (int s = 0; s < program.stages; ++s) {
    CHECK(At(read->f, s) == costs.f[s]);
    CHECK(At(read->bw, s) == costs.bw[s]);
    CHECK(At(read->comm, s) == costs.comm[s]);
    CHECK(At(read->step, s) == costs.step[s]);
  }
}

TEST_CASE("without costs the stages of a model weigh as much as their operations") {
  const Program program = PlanOf();
  const CostModel costs = *CostsOf(program);
  const double first = WorkOf(LayoutStage(*program.job, 0), *program.job).forward.operations;
  const double last = WorkOf(LayoutStage(*program.job, 1), *program.job).forward.operations;
  CHECK(costs.f[0] / costs.f[1] == Approx(first / last));
  CHECK(costs.f[0] + costs.f[1] == Approx(2));
  CHECK(!costs.seconds);
  CHECK(CostsOf(program, *ParseCosts("f=3"))->f == PerStage{3});
}

TEST_CASE("a description is read as it is written") {
  const std::string path = "machine_test.json";
  const auto read = [&](const std::string& text) {
    std::FILE* file = std::fopen(path.c_str(), "w");
    REQUIRE(file != nullptr);
    std::fputs(text.c_str(), file);
    std::fclose(file);
    return FindMachine(path);
  };
  for (const Machine& machine : Machines()) {
    const auto again = read(ToJson(machine));
    INFO(again.status().message());
    REQUIRE(again.ok());
    CHECK(ToJson(*again) == ToJson(machine));
    CHECK(again->between.latency == Approx(machine.between.latency));
    CHECK(again->node == machine.node);
    CHECK(again->contention == machine.contention);
  }
  const auto wrong = [&](const std::string& text, const std::string& error) {
    INFO(text);
    CHECK(read(text).status().message().find(path + ": " + error) == 0);
  };
  wrong("[]", "is no JSON object");
  wrong("{", "is no JSON object");
  wrong("{}", "flops is missing");
  wrong(R"({"flops":{"fp32":0}})", "flops is missing");
  wrong(R"({"flops":{"fp64":1}})", "flops.fp64 is not known");
  wrong(R"({"flops":{"fp32":-1}})", "flops.fp32 is -1 (a number from 0 on, in FLOP/s)");
  wrong(R"({"flops":{"fp32":"1GB/s"}})", "flops.fp32 is \"1GB/s\"");
  wrong(R"({"flops":{"fp32":1e25}})", "flops.fp32 is 1e+25");
  wrong(R"({"flops":[1]})", "flops.0 is not known");
  wrong(R"({"flops":{"fp32":1},"node":-1})", "node is -1");
  wrong(R"({"flops":{"fp32":1},"reaches":{"product":0}})", "reaches.product is 0");
  wrong(R"({"flops":{"fp32":1},"reaches":{"product":1.5}})", "reaches.product is 1.5");
  wrong(R"({"flops":{"fp32":1},"contention":1.5})", "contention is 1.5 (a share from 0 on");
  wrong(R"({"flops":{"fp32":1},"inside":{"latency":"1GB"}})", "inside.latency is \"1GB\"");
  wrong(R"({"flops":{"fp32":1},"inside":3})", "inside is not known");
  // The paths of all these numbers would take 80 GB.
  std::string zeros;
  for (int i = 0; i < 200'000; ++i) zeros += ",0";
  wrong("{\"" + std::string(400'000, 'k') + "\":[0" + zeros + "]}", "kkkkk");
  CHECK(std::remove(path.c_str()) == 0);
  CHECK(FindMachine("nothing").status().message().find("--machine: 'nothing' (a100-40g") == 0);
  CHECK(MachineOf("0").status().message().find("--device-flops: '0'") == 0);
  CHECK(!MachineOf("1GB/s").ok());
  const auto none = CostsOn(*read(R"({"flops":{"bf16":1}})"), PlanOf());
  CHECK(none.status().message().find("has no flops for --dtype fp32") != std::string::npos);
  CHECK(std::remove(path.c_str()) == 0);
}

}  // namespace
}  // namespace pp
