// The proof for NCCL against its definition: the start of every transfer, computed from the lists
// by recursion, with random times for the instructions of the compute lanes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "compiler/compile.h"
#include "schema/nccl/prove.h"
#include "schema/nccl/stalls.h"
#include "schema/play/execute.h"
#include "schema/play/play.h"
#include "schema/proof/body_walk.h"
#include "schema/routines.h"
#include "schema/sections.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp::nccl {
namespace {

using Times = std::vector<std::vector<double>>;  // device -> instruction -> how long it takes

// A deadlock is a time that depends on itself.
class Oracle {
 public:
  Oracle(const Program& program, const std::vector<WaitsFor>& waits_for, const Traffic& traffic,
         const Streams& streams, Times times)
      : program_(program), waits_for_(waits_for), traffic_(traffic), times_(std::move(times)) {
    before_.assign(traffic.ends.size(), -1);
    for (const Stream& stream : streams.all)
      for (size_t i = 1; i < stream.ends.size(); ++i) before_[stream.ends[i]] = stream.ends[i - 1];
  }

  // Of the transfer, or nothing if it never starts.
  std::optional<double> Start(int32_t transfer) {
    auto [at, is_new] = starts_.try_emplace(transfer, kOpen);
    if (!is_new) return at->second == kOpen ? std::nullopt : std::optional(at->second);
    double start = 0;
    const Transfer& t = traffic_.transfers[transfer];
    for (int32_t e = t.first_end; e < t.first_end + t.ends; ++e) {
      const End& end = traffic_.ends[e];
      const auto data = LaneAt(end.device, waits_for_[end.device][end.index]);
      const auto turn = before_[e] < 0 ? 0 : Start(traffic_.ends[before_[e]].transfer);
      if (!data || !turn) return std::nullopt;
      start = std::max({start, *data, *turn});
    }
    return starts_[transfer] = start;
  }

  // Instructions that some Start has asked for: a prefix of each list.
  const std::map<int, int>& Asked() const { return asked_; }

 private:
  static constexpr double kOpen = -1;

  // When the compute lane has finished the instruction.
  std::optional<double> LaneAt(int device, int index) {
    if (index < 0) return 0;
    int& asked = asked_.try_emplace(device, -1).first->second;
    asked = std::max(asked, index);
    auto& lane = lanes_[device];
    while (static_cast<int>(lane.size()) <= index) {
      const size_t i = lane.size();
      double time = (i == 0 ? 0 : lane[i - 1]) + times_[device][i];
      if (program_.lists[device].body[i].op == Op::kWait) {
        const auto start = Start(traffic_.ends[traffic_.joins[device][i]].transfer);
        if (!start) return std::nullopt;
        time = std::max(time, *start);
      }
      if (lane.size() == i) lane.push_back(time);  // or the recursion has been here
    }
    return lane[index];
  }

  const Program& program_;
  const std::vector<WaitsFor>& waits_for_;
  const Traffic& traffic_;
  const Times times_;
  std::vector<int32_t> before_;  // end -> the one before it in its stream, or -1
  std::map<int32_t, double> starts_;
  std::map<int, std::vector<double>> lanes_;
  std::map<int, int> asked_;
};

// What one list per device asks for.
struct Case {
  Program unrolled;
  std::vector<WaitsFor> waits_for;
  Traffic traffic;
};

Traffic MustFind(const Program& unrolled, const std::vector<WaitsFor>& waits_for) {
  auto traffic = play::FindTraffic(unrolled, waits_for);
  REQUIRE(traffic.ok());
  return std::move(*traffic);
}

// Whether the end is reached.
bool Ends(const Program& unrolled, const Traffic& traffic, const Streams& streams) {
  return play::Play(unrolled, traffic, streams, {}, nullptr).ok();
}

Case CaseOf(const Program& plan) {
  Case c;
  REQUIRE(Verify(plan, Depth::kPlan, &c.waits_for).ok());
  c.unrolled = Unrolled(plan);
  c.traffic = MustFind(c.unrolled, c.waits_for);
  return c;
}

Case RowOf(const Program& plan, int bodies) {
  Case c{.unrolled = Unroll(plan, bodies), .waits_for = {}, .traffic = {}};
  REQUIRE(WalkBodies(plan, c.unrolled, bodies, &c.waits_for).ok());
  c.traffic = MustFind(c.unrolled, c.waits_for);
  return c;
}

Times TimesOf(const Program& unrolled, double time) {
  Times times;
  for (const DeviceList& list : unrolled.lists) times.emplace_back(list.body.size(), time);
  return times;
}

// Whether everything starts when it would with each flow in a stream of its own.
bool StartsAsEarly(const Case& c, const Streams& streams, const Streams& finest,
                   const Times& times) {
  Oracle oracle(c.unrolled, c.waits_for, c.traffic, streams, times);
  Oracle base(c.unrolled, c.waits_for, c.traffic, finest, times);
  for (size_t t = 0; t < c.traffic.transfers.size(); ++t)
    if (oracle.Start(static_cast<int32_t>(t)) != base.Start(static_cast<int32_t>(t))) return false;
  return true;
}

// It is a stall if everything that the waiting operation needs takes no time, and all else does.
bool IsStall(const Case& c, const Streams& streams, const Streams& finest, const Stall& stall) {
  const int32_t waits = c.traffic.ends[stall.waits].transfer;
  Times times = TimesOf(c.unrolled, 1);
  Oracle needs(c.unrolled, c.waits_for, c.traffic, finest, times);
  if (!needs.Start(waits)) return false;
  for (const auto& [device, last] : needs.Asked())
    std::fill(times[device].begin(), times[device].begin() + last + 1, 0);
  Oracle base(c.unrolled, c.waits_for, c.traffic, finest, times);
  Oracle oracle(c.unrolled, c.waits_for, c.traffic, streams, times);
  return base.Start(waits) == 0 && oracle.Start(waits) != 0;
}

// Some messages and reductions moved, as far as the plain proof allows.
Program Shuffled(Program plan, std::mt19937& random) {
  for (int k = 0; k < 12; ++k) {
    Program moved = plan;
    auto& list = moved.lists[random() % moved.lists.size()].body;
    const size_t from = random() % list.size();
    const size_t to = from - std::min<size_t>(from, 1 + random() % 8);
    if (!IsMessage(list[from]) && Info(list[from].op).lane != Lane::kReduce) continue;
    std::rotate(list.begin() + to, list.begin() + from, list.begin() + from + 1);
    if (Lower(moved, Form::kLists, {}).ok()) plan = std::move(moved);
  }
  return plan;
}

// Receives whose buffers become free later, as far as the plain proof allows.
Case WithLaterBuffers(Case c, std::mt19937& random) {
  for (int k = 0; k < 60; ++k) {
    std::vector<WaitsFor> later = c.waits_for;
    const size_t d = random() % later.size();
    const auto& list = c.unrolled.lists[d].body;
    const size_t i = random() % list.size();
    if (Info(list[i].op).lane != Lane::kRecv) continue;
    const size_t use = i - std::min<size_t>(i, 1 + random() % 6);
    if (Info(list[use].op).lane != Lane::kCompute) continue;
    later[d][i] = std::max(later[d][i], static_cast<int32_t>(use));
    if (Execute(c.unrolled, later, CostModel(), nullptr).ok()) c.waits_for = std::move(later);
  }
  c.traffic = MustFind(c.unrolled, c.waits_for);
  return c;
}

void CheckLayout(const Case& c, const Layout& layout, std::mt19937& random) {
  const Streams streams = MakeStreams(c.traffic, layout);
  const Streams finest = MakeStreams(c.traffic, {.sharings = {.most = Sharing::kKind}});
  Oracle oracle(c.unrolled, c.waits_for, c.traffic, streams, TimesOf(c.unrolled, 1));
  bool ends = true;
  for (size_t t = 0; t < c.traffic.transfers.size(); ++t)
    ends = ends && oracle.Start(static_cast<int32_t>(t));
  CHECK(Ends(c.unrolled, c.traffic, streams) == ends);

  const std::vector<Stall> stalls = FindStalls(c.traffic, streams);
  for (const Stall& stall : stalls) CHECK(IsStall(c, streams, finest, stall));
  for (int k = 0; stalls.empty() && k < 5; ++k) {
    Times times = TimesOf(c.unrolled, 0);
    for (auto& list : times)
      for (double& time : list) time = random() % 4 == 0 ? static_cast<double>(random() % 100) : 0;
    CHECK(StartsAsEarly(c, streams, finest, times));
  }
}

// The carriers that stall, with each layout.
std::vector<int32_t> Stalling(const Case& c) {
  std::vector<Layout> layouts = {{.stream_per = StreamPer::kDevice}};
  for (const SharingInfo& info : AllSharings())
    layouts.push_back({.sharings = {.most = info.sharing}});
  std::vector<int32_t> all;
  for (const Layout& layout : layouts) {
    for (const Stall& stall : FindStalls(c.traffic, MakeStreams(c.traffic, layout)))
      all.push_back(stall.carrier);
    all.push_back(-1);
  }
  return all;
}

void CheckLayouts(const Case& c, std::mt19937& random) {
  for (const SharingInfo& info : AllSharings())
    CheckLayout(c, {.sharings = {.most = info.sharing}}, random);
  CheckLayout(c, {.stream_per = StreamPer::kDevice}, random);
}

}  // namespace

TEST_CASE("deadlocks and stalls of every scheme are those of their definition") {
  std::mt19937 random(1);
  for (const Scheme& scheme : Schemes()) {
    int plans = 0;
    for (const auto& [devices, micros] :
         {std::pair{2, 2}, {2, 4}, {2, 6}, {3, 3}, {3, 6}, {4, 4}, {4, 8}, {6, 12}})
      for (const bool clip : {true, false}) {
        const Shape shape{.devices = devices, .microbatches = micros, .stages_per_device = 0};
        // Every other pair with ZeRO's scatters and gathers.
        const int zero = plans / 2 % 2;
        const CompileOptions options{.scheme = std::string(scheme.name),
                                     .shape = shape,
                                     .replicas = 1 + zero,
                                     .zero = zero,
                                     .clip = clip};
        if (!Compile(options).ok()) continue;
        INFO(scheme.name << " D " << devices << " M " << micros << " clip " << clip << " zero "
                         << zero);
        const Program plan = MustCompile(options);
        CheckLayouts(CaseOf(plan), random);
        CheckLayouts(RowOf(plan, plan.overlaps ? 3 : 2), random);
        ++plans;
      }
    INFO(scheme.name);
    CHECK(plans >= 3);
  }
}

TEST_CASE("two steps in a row, three that overlap and three evaluations show all stalls") {
  int rows = 0, later = 0;
  for (const Scheme& scheme : Schemes())
    for (const int micros : {1, 4, 8, 12})
      for (const bool clip : {true, false}) {
        const Shape shape{.devices = 4, .microbatches = micros, .stages_per_device = 0};
        const CompileOptions options{.scheme = std::string(scheme.name),
                                     .shape = shape,
                                     .replicas = 2,
                                     .clip = clip,
                                     .job = {.model = PaperModel(16)}};
        if (!Compile(options).ok()) continue;
        INFO(scheme.name << " M " << micros << " clip " << clip);
        const Program plan = MustCompile(options), evaluation = RoutineOf(plan, kEvaluationRoutine);
        const int bodies = plan.overlaps ? 3 : 2;
        CHECK(Stalling(RowOf(plan, bodies)) == Stalling(RowOf(plan, bodies + 1)));
        const auto three = Stalling(RowOf(evaluation, 3));
        CHECK(three == Stalling(RowOf(evaluation, 4)));
        later += Stalling(RowOf(plan, 1)) != Stalling(RowOf(plan, 2));
        later += Stalling(RowOf(evaluation, 2)) != three;
        ++rows;
      }
  CHECK(rows >= 60);
  CHECK(later > 0);
}

TEST_CASE("those of lists in another order are, too") {
  std::mt19937 random(2);
  int changed = 0;
  for (const char* scheme : {"1f1b", "interleaved", "chimera", "zb-h1", "hanayo", "v-half"})
    for (const auto& [devices, micros] : {std::pair{2, 4}, {4, 8}}) {
      const Program plan = MustCompile(
          {.scheme = scheme,
           .shape = {.devices = devices, .microbatches = micros, .stages_per_device = 0},
           .replicas = 2});
      for (int k = 0; k < 20; ++k) {
        const Program other = Shuffled(plan, random);
        changed += !(other == plan);
        INFO(scheme << " D " << devices << " M " << micros << " variant " << k);
        const Case c = WithLaterBuffers(CaseOf(other), random);
        CheckLayouts(c, random);
      }
    }
  CHECK(changed >= 120);  // of 240
}

TEST_CASE("all schemes are safe with as many communicators as the proof names") {
  for (const Scheme& scheme : Schemes()) {
    int plans = 0;
    for (const P2p p2p : {P2p::kAsync, P2p::kBlocking})
      for (const int replicas : {1, 2})
        for (const auto& [devices, micros] :
             {std::pair{1, 4}, {2, 4}, {3, 6}, {4, 4}, {4, 8}, {6, 12}, {8, 8}, {8, 16}, {8, 32}}) {
          const Shape shape{.devices = devices, .microbatches = micros, .stages_per_device = 0};
          const CompileOptions options{
              .scheme = std::string(scheme.name), .shape = shape, .p2p = p2p, .replicas = replicas};
          if (!Compile(options).ok()) continue;
          INFO(scheme.name << " D " << devices << " M " << micros << " dp " << replicas
                           << (p2p == P2p::kAsync ? " async" : " blocking"));
          const Program plan = MustCompile(options);
          std::vector<WaitsFor> waits_for;
          REQUIRE(Verify(plan, Depth::kPlan, &waits_for).ok());
          const auto needs = Prove(plan, {});
          INFO(needs.status().message());
          REQUIRE(needs.ok());
          const Program unrolled = Unrolled(plan);
          const Traffic traffic = MustFind(unrolled, waits_for);
          const Streams streams = MakeStreams(traffic, {.sharings = needs->sharings});
          CHECK(Ends(unrolled, traffic, streams));
          CHECK(FindStalls(traffic, streams).empty());
          if (devices * replicas > 1) CHECK(streams.MostOnADevice() == needs->most.streams);
          ++plans;
        }
    INFO(scheme.name);
    CHECK(plans >= 16);
  }
}

}  // namespace pp::nccl
