// Schedules of PyTorch, in and out. The vectors are PyTorch's own (reference/torch/README).
#include "compiler/interop.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <regex>

#include "compiler/compile.h"
#include "compiler/places.h"
#include "compiler/simulate.h"
#include "schema/proof/verify.h"
#include "schema/text.h"
#include "tests/cycle.h"
#include "tests/models.h"

namespace pp {
namespace {

std::string ReadVector(const std::string& name) {
  std::ifstream file("tests/reference/torch/" + name + ".csv");
  REQUIRE(file.is_open());
  return {std::istreambuf_iterator<char>(file), {}};
}

Program MustParse(const std::string& text) {
  auto program = ParseTorchCsv(text, "csv");
  INFO(program.status().message());
  REQUIRE(program.ok());
  return *program;
}

Result<Program> Lowered(const Program& lists, P2p p2p) {
  CompileOptions options;
  options.p2p = p2p;
  return CompileLists(lists, {"csv"}, options);
}

// "" or the error.
std::string ErrorOf(const Program& lists, P2p p2p) {
  const auto plan = Lowered(lists, p2p);
  return plan.ok() ? Verify(*plan, Depth::kPlan).message() : plan.status().message();
}

// What a file states: without what lowering adds.
using Lists = std::vector<std::vector<Instruction>>;
Lists StatedIn(const Program& program) {
  Lists lists;
  for (const DeviceList& list : program.lists)
    for (auto& stated = lists.emplace_back(); Instruction i : list.body)
      if (Info(i.op).fields.Has(Field::kMicro)) {
        i.offset[0] = i.offset[1] = i.offset[2] = -1;
        stated.push_back(i);
      }
  return lists;
}

std::string WithoutIdle(std::string text) {
  for (size_t at; (at = text.find(",,")) != text.npos;) text.erase(at, 1);
  for (size_t at; (at = text.find("\n,")) != text.npos;) text.erase(at + 1, 1);
  for (size_t at; (at = text.find(",\n")) != text.npos;) text.erase(at, 1);
  return text;
}

}  // namespace

TEST_CASE("compute-only vectors become plans and come back cell by cell") {
  for (const char* name : {"dualpipev_4rank_10mb", "schedule_v_shaped", "schedule_unbalanced",
                           "schedule_with_w", "simple_2_rank_2_stage_compute"}) {
    INFO(name);
    const std::string text = ReadVector(name);
    const Program lists = MustParse(text);
    CHECK(PrintTorchCsv(lists).ok());
    CHECK(*PrintTorchCsv(lists) == WithoutIdle(text));
    for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
      REQUIRE(ErrorOf(lists, p2p) == "");
      CHECK(*PrintTorchCsv(*Lowered(lists, p2p)) == WithoutIdle(text));
    }
  }
}

TEST_CASE("a schedule comes back from its text, with its WAITs, REDUCEs and STEPs") {
  for (const Scheme& scheme : Schemes())
    for (const char* passes : {"", "apply-checkpoint,overlap-recompute"}) {
      std::string text;
      PassObserver observer;
      observer.end = [&](std::string_view name, const Program& program, double) {
        if (name == "scheme" || name == "overlap-recompute") text = Print(program);
      };
      const auto plan = Compile(
          {.scheme = std::string(scheme.name), .shape = {4, 8, 0}, .passes = passes}, observer);
      if (!plan.ok()) continue;  // without a flush nothing is recomputed
      INFO(text);
      const auto again = CompileLists(*Parse(text, "text"), {"text"}, {});
      REQUIRE(again.status().message() == "");
      CHECK(again->lists == plan->lists);
    }
}

TEST_CASE("in the older notation, B is the input half") {
  for (const char* name : {"zb1p_2rank_2stagep_compute", "v_2_rank_4_stage_compute"}) {
    INFO(name);
    std::string text = WithoutIdle(ReadVector(name));
    const Program lists = MustParse(text);
    CHECK(ErrorOf(lists, P2p::kAsync) == "");
    std::replace(text.begin(), text.end(), 'B', 'I');
    CHECK(*PrintTorchCsv(lists) == text);
  }
  CHECK(*PrintTorchCsv(MustParse("0F0,0F1,0BW0,0B1,0W1")) == "0F0,0F1,0B0,0I1,0W1\n");
}

TEST_CASE("given messages keep their order, and deadlocks are found") {
  const struct {
    const char* name;
    const char* blocking;  // the error with blocking sends
  } kVectors[] = {
      {"zb1p_2rank_2stagep_comms", ""},
      {"schedule_with_reordered_b", ""},
      {"simple_2_rank_2_stage_comms", ""},
      {"v_2_rank_4_stage_comms", ""},
      {"simple_2_rank_2_stage_deferred",
       "csv: after insert-comm: deadlock: device 0 stops at 'SEND_act s0 m1 to d1'; device 1 stops "
       "at 'SEND_grad s0 m0 to d0'"},
      {"v_2_rank_4_stage_deferred",
       "csv: after insert-comm: deadlock: device 0 stops at 'SEND_act s0 m1 to d1'; device 1 stops "
       "at 'SEND_act s2 m0 to d0'"},
      {"iw_split_deferred",
       "csv: after insert-comm: deadlock: device 0 stops at 'RECV_grad s0 m0 from d1'; device 1 "
       "stops at 'RECV_act s0 m0 from d0'"},
  };
  for (const auto& vector : kVectors) {
    INFO(vector.name);
    const Program lists = MustParse(ReadVector(vector.name));
    REQUIRE(ErrorOf(lists, P2p::kAsync) == "");
    CHECK(StatedIn(*Lowered(lists, P2p::kAsync)) == StatedIn(lists));
    const std::string blocking = ErrorOf(lists, P2p::kBlocking);
    REQUIRE(blocking.substr(0, blocking.find(" (")) == vector.blocking);
    if (!blocking.empty()) CHECK(FaultOfCycle(blocking) == "");
    if (blocking.empty()) CHECK(StatedIn(*Lowered(lists, P2p::kBlocking)) == StatedIn(lists));
  }
}

TEST_CASE("messages in an order that cannot work are refused") {
  // d1 sends the second gradient first, d0 receives the first one first.
  const Program crossed = MustParse(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1B1,1SEND_B1,1SEND_B0\n");
  const std::string order =
      "channel d1 to d0: message 0 is 'SEND_grad s0 m1 to d0' at its start and 'RECV_grad s0 m0 "
      "from "
      "d1' at its end (receives must be in the order of the sends)";
  CHECK(ErrorOf(crossed, P2p::kAsync) == "csv: " + order);
  CHECK(ErrorOf(crossed, P2p::kBlocking) == "csv: after insert-comm: " + order);
  // A use before its receive, and a missing message.
  CHECK(ErrorOf(MustParse("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0"), P2p::kAsync) ==
        "csv: device 1, instruction 1: 'FW s1 m0' comes before 'RECV_act s0 m0 from d0', device 1, "
        "instruction 2");
  CHECK(ErrorOf(MustParse("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0"), P2p::kAsync) ==
        "csv: SEND_grad s0 m0 is missing on device 1 (device 1 has its list)");
}

// One copy of the model and steps that do not overlap: what PyTorch's CSV can express.
bool Expressible(const Program& plan) { return plan.pipes.size() == 1 && !plan.overlaps; }

CompileOptions OptionsOf(const Scheme& scheme, P2p p2p) {
  CompileOptions options;
  options.scheme = scheme.name;
  options.shape = {.devices = 4, .microbatches = 8, .stages_per_device = 0};
  options.p2p = p2p;
  return options;
}

// The same plan again, with the same bytes of memory.
TEST_CASE("every scheme goes out and comes back") {
  for (const Scheme& scheme : Schemes())
    for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
      INFO(scheme.name);
      CompileOptions options = OptionsOf(scheme, p2p);
      auto plan = Compile(options);
      REQUIRE(plan.ok());
      REQUIRE(PrintTorchCsv(*plan).ok() == Expressible(*plan));
      if (!Expressible(*plan)) continue;
      options.job.model = PaperModel(16);
      plan = Compile(options);
      REQUIRE(plan.ok());
      const auto text = PrintTorchCsv(*plan);
      REQUIRE(text.ok());
      auto again = CompileLists(MustParse(*text), {"csv"}, options);
      INFO(again.status().message());
      REQUIRE(again.ok());
      CHECK(*PrintTorchCsv(*again) == *text);
      // The fold schemes also say where to reduce, which the CSV cannot.
      if (scheme.name.starts_with("fold")) continue;
      again->scheme = plan->scheme;
      CHECK(*again == *plan);
    }
}

std::string WithoutWaits(std::string text) {
  return std::regex_replace(text, std::regex(",[0-9]+WAIT_SEND_[FB][0-9]+"), "");
}

// Where an asynchronous plan waits for its sends, lowering decides again.
TEST_CASE("every scheme goes out with its messages and comes back") {
  for (const Scheme& scheme : Schemes())
    for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
      INFO(scheme.name);
      const CompileOptions options = OptionsOf(scheme, p2p);
      const auto plan = Compile(options);
      REQUIRE(plan.ok());
      const auto text = PrintTorchCsv(*plan, TorchMessages::kFull);
      REQUIRE(text.ok() == Expressible(*plan));
      if (!Expressible(*plan)) continue;
      CHECK(text->find("SEND_F") != text->npos);
      const auto again = CompileLists(MustParse(*text), {"csv"}, options);
      INFO(again.status().message());
      REQUIRE(again.ok());
      const std::string back = *PrintTorchCsv(*again, TorchMessages::kFull);
      CHECK(WithoutWaits(back) == WithoutWaits(*text));
      if (p2p == P2p::kBlocking) CHECK(back == *text);
    }
}

TEST_CASE("the full form of a plan") {
  const auto plan = Lowered(MustParse("0F0,0B0\n1F0,1B0\n"), P2p::kAsync);
  REQUIRE(plan.ok());
  CHECK(*PrintTorchCsv(*plan, TorchMessages::kFull) ==
        "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD\n");
  const auto blocking = Lowered(MustParse("0F0,0B0\n1F0,1B0\n"), P2p::kBlocking);
  REQUIRE(blocking.ok());
  CHECK(*PrintTorchCsv(*blocking, TorchMessages::kFull) ==
        "0F0,0SEND_F0,0WAIT_SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD\n");
}

TEST_CASE("micro-batches are numbered as the last stage takes them") {
  const Program lists = MustParse("0F0,0F1,0F2,0B2,0B0,0B1\n1F2,1F0,1F1,1B2,1B0,1B1\n");
  CHECK(LossOrder(lists) == std::vector<int32_t>{1, 2, 0});
  const std::string text = *PrintTorchCsv(lists);
  CHECK(text == "0F1,0F2,0F0,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
  CHECK(*PrintTorchCsv(MustParse(text)) == text);
  // The order of the others does not matter.
  CHECK(LossOrder(MustParse("0F1,0F0,0B0,0B1\n1F0,1F1,1B1,1B0\n")) == std::vector<int32_t>{0, 1});
}

TEST_CASE("the schedule whose name places stages for torchtitan") {
  const struct {
    const char* text;
    const char* name;  // or what is wrong
  } kCases[] = {
      {"0F0,0B0", "1F1B"},
      {"0F0,0B0\n1F0,1B0", "1F1B"},
      {"0F0,1F0,1B0,0B0", "Interleaved1F1B"},
      {"0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0", "Interleaved1F1B"},
      {"0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0", "ZBVZeroBubble"},
      {"1F0,1B0\n0F0,0B0", "stage 0 is on device 1 (on device 0)"},
      {"0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0", "stage 1 is on device 0 (on device 1)"},
      {"0F0,2F0,2B0,0B0\n1F0,1B0", "3 stages on 2 devices (as many on each)"},
  };
  for (const auto& row : kCases) {
    INFO(row.text);
    const auto name = TorchtitanSchedule(MustParse(row.text));
    CHECK((name.ok() ? *name : name.status().message()) == row.name);
  }
}

TEST_CASE("imported lists take the options of a scheme") {
  CompileOptions options;
  options.scheme = "1f1b";
  options.shape = {.devices = 3, .microbatches = 6, .stages_per_device = 0};
  const auto plain = Compile(options);
  REQUIRE(plain.ok());
  options.passes = "mario";
  options.replicas = 2;
  options.zero = 1;
  const auto plan = Compile(options);
  REQUIRE(plan.ok());
  auto imported = CompileLists(MustParse(*PrintTorchCsv(*plain)), {"csv"}, options);
  INFO(imported.status().message());
  REQUIRE(imported.ok());
  imported->scheme = plan->scheme;
  CHECK(*imported == *plan);
  // And the result is nothing for PyTorch.
  CHECK_THAT(PrintTorchCsv(*plan).status().message(),
             Catch::EndsWith("PyTorch's schedules have no recomputation"));
}

// A step that looks at all stages for each of them would take minutes.
TEST_CASE("many stages on a device") {
  constexpr int kStages = 100'000;
  for (const int devices : {1, 2}) {
    std::vector<std::string> rows(devices);
    for (int s = 0; s < kStages; ++s) rows[s % devices] += fmt::format("{}F0,", s);
    for (int s = kStages; s-- > 0;) rows[s % devices] += fmt::format("{}B0,", s);
    CompileOptions options;
    options.replicas = 2;
    options.proves = false;
    const auto plan =
        CompileLists(MustParse(fmt::format("{}\n", fmt::join(rows, "\n"))), {"csv"}, options);
    INFO(plan.status().message());
    REQUIRE(plan.ok());
    CHECK(Verify(*plan, Depth::kPlan).message() == "");
  }
}

TEST_CASE("dualpipe-v is PyTorch's DualPipeV") {
  const auto plan = Compile({.scheme = "dualpipe-v",
                             .shape = {.devices = 4, .microbatches = 10, .stages_per_device = 0}});
  REQUIRE(plan.ok());
  CHECK(*PrintTorchCsv(*plan) == ReadVector("dualpipev_4rank_10mb"));
}

// The SENDs and RECVs that pipec itself has placed are accepted when a user gives them.
TEST_CASE("a plan's own messages, given back, make a plan as fast") {
  for (const Scheme& scheme : Schemes())
    for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
      INFO(scheme.name);
      const CompileOptions options = OptionsOf(scheme, p2p);
      const auto plan = Compile(options);
      REQUIRE(plan.ok());
      if (!Expressible(*plan)) continue;
      Program lists = *plan;
      const Lists stated = StatedIn(*plan);
      for (int d = 0; d < lists.devices; ++d) lists.lists[d].body = stated[d];
      const auto again = CompileLists(lists, {"lists"}, options);
      INFO(again.status().message());
      REQUIRE(again.ok());
      CHECK(StatedIn(*again) == stated);
      double makespans[2];
      for (const Program* program : {&*plan, &*again}) {
        std::vector<WaitsFor> waits_for;
        REQUIRE(Verify(*program, Depth::kPlan, &waits_for).ok());
        const auto prediction = Simulate(*program, waits_for, CostModel());
        REQUIRE(prediction.ok());
        makespans[program == &*again] = prediction->execution.makespan;
      }
      CHECK(makespans[1] == Approx(makespans[0]));
    }
}

}  // namespace pp
