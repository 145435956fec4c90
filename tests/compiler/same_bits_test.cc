// The product's promise: a schedule changes when things are computed, never what. The losses of
// five steps, with dropout on, have the same bits as on one device; and the run executes the plan,
// instruction by instruction.
#include <bit>
#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "compiler/compile.h"
#include "compiler/interop.h"
#include "runtime/run/train.h"
#include "schema/text.h"
#include "tests/folder.h"
#include "tests/kept_report.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

constexpr int kSteps = 5;

ModelConfig SmallModel() {
  ModelConfig model = Gpt2Model({.vocab_size = 128,
                                 .max_positions = 8,
                                 .hidden_size = 24,
                                 .layers = 8,  // so that 8 stages have one each
                                 .heads = 3,
                                 .intermediate_size = 4 * 24});
  model.embedding_dropout = model.attention_dropout = model.residual_dropout = 0.1f;
  return model;
}

CompileOptions Options(const std::string& scheme, int devices, int micros, P2p p2p = P2p::kAsync) {
  return {.scheme = scheme,
          .shape = {devices, micros, 0},
          .p2p = p2p,
          .job = {.model = SmallModel(), .micro_batch_size = 2}};
}

using Change = void (*)(TrainOptions*);
KeptReport MustTrain(const Program& program, Change change = nullptr) {
  TrainOptions options;
  options.data = {SharedText()};
  options.optimizer.steps = kSteps;
  options.optimizer.learning_rate = 1e-2;
  if (change != nullptr) change(&options);
  const KeptReport report = TrainAndKeep(program, options);
  INFO(report.status.message());
  REQUIRE(report.status.ok());
  REQUIRE(report.steps.size() == kSteps);
  return report;
}

void Record(TrainOptions* options) { options->record = true; }
void Evaluate(TrainOptions* options) {
  options->val_data = options->data;
  options->sample = 5;
  options->stall_timeout = 20;  // a rank that hears of no token waits for ever
}

std::vector<uint64_t> BitsOf(const KeptReport& report) {
  std::vector<uint64_t> bits;
  for (const StepReport& step : report.steps) {
    bits.push_back(std::bit_cast<uint64_t>(step.loss));
    bits.push_back(std::bit_cast<uint64_t>(step.grad_norm.value_or(0)));
  }
  return bits;
}

}  // namespace

TEST_CASE("every schedule has the bits of one device") {
  std::printf("%-12s %2s %3s %-9s  %-17s %-17s same bits\n", "scheme", "D", "M", "p2p",
              "loss of step 1", "loss of step 5");
  for (int micros : {4, 8}) {
    const KeptReport one = MustTrain(MustCompile(Options("gpipe", 1, micros)));
    CHECK(one.steps.back().loss < one.steps.front().loss);
    for (const char* scheme : {"gpipe", "1f1b", "interleaved"})
      for (int devices : {1, 2, 4})
        for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
          const KeptReport report = MustTrain(MustCompile(Options(scheme, devices, micros, p2p)));
          const bool same = BitsOf(report) == BitsOf(one);
          std::printf("%-12s %2d %3d %-9s  %.15f %.15f %s\n", scheme, devices, micros,
                      p2p == P2p::kAsync ? "async" : "blocking", report.steps.front().loss,
                      report.steps.back().loss, same ? "yes" : "NO");
          CHECK(same);
        }
  }
}

TEST_CASE("so has every scheme with one pipe, and every pass") {
  const int micros = 8;
  const KeptReport one = MustTrain(MustCompile(Options("gpipe", 1, micros)));
  auto check = [&](CompileOptions options) {
    const KeptReport report = MustTrain(MustCompile(options));
    const bool same = BitsOf(report) == BitsOf(one);
    std::printf("%-12s %2d %3d %-9s  %s %s\n", options.scheme.c_str(), options.shape.devices,
                micros, options.p2p == P2p::kAsync ? "async" : "blocking", options.passes.c_str(),
                same ? "yes" : "NO");
    CHECK(same);
  };
  for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
    for (const Scheme& scheme : Schemes()) {
      // Copies and older weights have other bits (training_grid_test, pipedream_test).
      if (scheme.map == StageMap::kBoth || scheme.name.starts_with("pipedream")) continue;
      check(Options(std::string(scheme.name), 4, micros, p2p));
    }
    for (const char* scheme : {"1f1b", "interleaved", "hanayo"})
      for (const char* passes : {"mario", "split-backward", "fit-memory"}) {
        CompileOptions options = Options(scheme, 4, micros, p2p);
        options.passes = passes;
        // The search does not know how messages go; without local search it ends elsewhere.
        if (options.passes == "fit-memory")
          options.fit = {.limit = {.values = {2}}, .quick = p2p == P2p::kBlocking};
        check(options);
      }
  }
}

TEST_CASE("so have schedules of PyTorch, with its order of messages or ours") {
  for (const char* name :
       {"zb1p_2rank_2stagep_compute", "zb1p_2rank_2stagep_comms", "dualpipev_4rank_10mb"})
    for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
      std::ifstream file(std::string("tests/reference/torch/") + name + ".csv");
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      const auto lists = ParseTorchCsv(text, name);
      REQUIRE(lists.ok());
      const int micros = lists->microbatches;
      const auto program = CompileLists(*lists, {name}, Options("", 0, 0, p2p));
      INFO(program.status().message());
      REQUIRE(program.ok());
      CHECK(BitsOf(MustTrain(*program)) ==
            BitsOf(MustTrain(MustCompile(Options("gpipe", 1, micros)))));
    }
}

// With replicas and several devices the ranks of a device, a pipe, a copy or a norm are others.
TEST_CASE("so have ranks in either order, and their validation") {
  struct {
    const char* scheme;
    int devices, replicas, zero, tp;
  } const cuts[] = {{"1f1b", 2, 2, 0, 1},     {"1f1b", 2, 2, 1, 2}, {"chimera", 4, 2, 0, 1},
                    {"dualpipe", 2, 3, 1, 1}, {"zb-v", 2, 2, 0, 2}, {"interleaved", 1, 2, 0, 2}};
  for (const auto& cut : cuts) {
    INFO(cut.scheme << " pp " << cut.devices << " dp " << cut.replicas << " zero " << cut.zero
                    << " tp " << cut.tp);
    CompileOptions options = Options(cut.scheme, cut.devices, 8);
    options.job.model.heads = 6;
    options.replicas = cut.replicas;
    options.zero = cut.zero;
    options.job.tp = cut.tp;
    const Program program = MustCompile(options);
    options.rank_order = RankOrder::kTpDpPp;
    const Program other = MustCompile(options);
    CHECK(other.lists == program.lists);
    const KeptReport one = MustTrain(program, Evaluate), two = MustTrain(other, Evaluate);
    CHECK(BitsOf(one) == BitsOf(two));
    CHECK(one.steps.back().val_loss.value() == two.steps.back().val_loss.value());
    CHECK(one.sample == two.sample);
    CHECK(one.sample.size() > 8);
  }
}

TEST_CASE("the masks of dropout are part of the bits") {
  const auto with = BitsOf(MustTrain(MustCompile(Options("1f1b", 2, 4))));
  CHECK(with == BitsOf(MustTrain(MustCompile(Options("1f1b", 2, 4)))));
  // For each place separately.
  for (float ModelConfig::*place :
       {&ModelConfig::embedding_dropout, &ModelConfig::attention_dropout,
        &ModelConfig::residual_dropout}) {
    CompileOptions without = Options("1f1b", 2, 4);
    without.job.model.*place = 0;
    CHECK(BitsOf(MustTrain(MustCompile(without))) != with);
  }
}

TEST_CASE("what runs is the plan, instruction by instruction") {
  for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
    const Program program = MustCompile(Options("1f1b", 4, 4, p2p));
    const KeptReport report = MustTrain(program, Record);
    for (int d = 0; d < program.devices; ++d) {
      const auto& list = program.lists[d].body;
      for (int step = 1; step <= kSteps; ++step) {
        // In the order in which they began; within a lane this is the list's order.
        std::vector<Event> events;
        for (const Event& event : report.events)
          if (event.rank == d && event.step == step) events.push_back(event);
        REQUIRE(events.size() == list.size());
        std::stable_sort(events.begin(), events.end(),
                         [](const Event& a, const Event& b) { return a.start < b.start; });
        std::map<std::pair<Lane, int>, std::vector<std::string>> ran, planned;
        auto add = [](auto& lanes, const Instruction& i) {
          lanes[{Info(i.op).lane, i.peer}].push_back(ToText(i));
        };
        for (const Event& event : events) add(ran, list[event.index]);
        for (const Instruction& i : list) add(planned, i);
        CHECK(ran == planned);
        std::set<int> indices;
        for (const Event& event : events) indices.insert(event.index);
        CHECK(indices.size() == list.size());
      }
    }
  }
}

TEST_CASE("a rank holds the weights of its own stages only") {
  const Program program = MustCompile(Options("interleaved", 2, 4));
  for (int d = 0; d < 2; ++d) {
    std::set<int> stages;
    for (const Region& region : program.lists[d].regions)
      if (region.kind == Kind::kWeights) stages.insert(region.stage);
    const std::vector<int32_t> held = program.StagesOf(d);
    CHECK(stages == std::set<int>(held.begin(), held.end()));
  }
  // And the arena is all that it holds: its high-water mark is the predicted peak.
  const KeptReport report = MustTrain(program);
  for (int d = 0; d < 2; ++d)
    CHECK(report.steps.back().peak_bytes[d] == program.lists[d].arena_bytes);
}

TEST_CASE("a plan reordered by hand runs in its new order, with the same losses") {
  const Program program = MustCompile(Options("gpipe", 2, 4));
  std::string text = Print(program);
  // On the last device the first backward comes before the last forward.
  const std::string load = "  LOAD      s1 m3\n", wait = "  WAIT      act s0 m3\n",
                    forward = "  FW        s1 m3\n", backward = "  BW        s1 m0\n";
  const size_t at = text.find(load);
  const size_t end = text.find(backward, at);
  REQUIRE(at != std::string::npos);
  REQUIRE(end != std::string::npos);
  text.erase(end, backward.size());
  text.insert(at, backward);
  auto reordered = Parse(text, "reordered");
  REQUIRE(reordered.ok());
  const Status status = Lower(*reordered, Form::kLists, {});
  INFO(status.message());
  REQUIRE(status.ok());
  const KeptReport report = MustTrain(*reordered, Record);
  double backward_start = 0, forward_start = 0;
  for (const Event& event : report.events) {
    if (event.rank != 1 || event.step != 1) continue;
    const std::string instruction = ToText(reordered->lists[1].body[event.index]);
    if (instruction == "BW s1 m0") backward_start = event.start;
    if (instruction == "FW s1 m3") forward_start = event.start;
  }
  CHECK(backward_start < forward_start);
  CHECK(BitsOf(report) == BitsOf(MustTrain(program)));
}

TEST_CASE("checkpointed forwards and split backwards change nothing either") {
  const Program program = MustCompile(Options("gpipe", 2, 4));
  std::string text = Print(program);
  auto replace = [&](const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
  };
  for (const char* stage : {"s0", "s1"})
    for (int micro = 0; micro < 4; ++micro) {
      const std::string name = std::string(stage) + " m" + std::to_string(micro) + "\n";
      if (micro % 2 == 0) {
        replace("  FW        " + name, "  CFW       " + name);
        replace("  BW        " + name, "  RE        " + name + "  BW        " + name);
      }
      if (micro > 0) replace("  BW        " + name, "  BW_input  " + name + "  BW_weight " + name);
    }
  auto changed = Parse(text, "changed");
  REQUIRE(changed.ok());
  const Status status = Lower(*changed, Form::kLists, {});
  INFO(status.message());
  REQUIRE(status.ok());
  CHECK(BitsOf(MustTrain(*changed)) == BitsOf(MustTrain(program)));
}

}  // namespace pp
