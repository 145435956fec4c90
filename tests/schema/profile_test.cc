// What a run measured, and the costs that follow for its own plan and for others.
#include "schema/format/profile.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <tuple>
#include <vector>

#include "compiler/compile.h"
#include "compiler/machine/costs.h"
#include "compiler/machine/fit.h"
#include "schema/topology.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

Program PlanOf(const std::string& scheme, int devices, int size, std::vector<int> layers = {}) {
  CompileOptions options{.scheme = scheme,
                         .shape = {.devices = devices, .microbatches = 4, .stages_per_device = 0}};
  options.job.model = SmallModel("gpt2", false, 4);
  options.job.micro_batch_size = size;
  options.job.layers_per_stage = std::move(layers);
  return MustCompile(options);
}

// Two steps of warm-up, and two in which the k-th instruction of a device takes k.
std::vector<Event> EventsOf(const Program& program, int steps) {
  std::vector<Event> events;
  for (int step = 1; step <= steps; ++step)
    for (int d = 0; d < program.devices; ++d)
      for (size_t i = 0; i < program.lists[d].body.size(); ++i)
        events.push_back({.rank = d,
                          .device = d,
                          .index = static_cast<int32_t>(i),
                          .step = step,
                          .duration = step <= 2 ? 1e3 : static_cast<double>(i + 1)});
  return events;
}

TEST_CASE("medians by kind and stage, without the first two steps") {
  const Program program = PlanOf("1f1b", 2, 1);
  const Profile profile = ProfileOf(program, EventsOf(program, 4));
  CHECK(profile.steps == 2);
  for (int s = 0; s < 2; ++s) {
    std::vector<double> forwards;
    double step = 0;
    const auto& list = program.lists[s].body;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].op == Op::kForward) forwards.push_back(static_cast<double>(i + 1));
      if (list[i].op == Op::kStep) step = static_cast<double>(i + 1);
    }
    REQUIRE(forwards.size() == 4);
    CHECK(profile.of(Measured::kF)[s] == forwards[1]);  // of 8, the fourth
    CHECK(profile.of(Measured::kStep)[s] == step);
    CHECK(profile.of(Measured::kBi)[s] == -1);
    CHECK(profile.of(Measured::kReduce)[s] == -1);
  }
  CHECK(profile.of(Measured::kComm)[0] < 1e3);
  CHECK(profile.of(Measured::kComm)[1] == -1);
  CHECK(ProfileOf(program, EventsOf(program, 2)).of(Measured::kF)[0] == 1e3);
  CHECK(ProfileOf(program, {}).steps == 0);
}

// Of two replicas in two steps, which follow one another. Instructions of the compute lane take
// some seconds, more of them where a message goes to, so that most are there before their WAIT; a
// SEND takes 0.125 of the lane, is on its channel for 0.25 and arrives 0.5 later.
std::vector<Event> EventsWithMessages(const Program& program) {
  std::vector<Event> events;
  std::map<std::tuple<int, Kind, int, int>, double> arrivals;  // by run, and value
  for (int run = 0; run < 4; ++run) {
    std::vector<size_t> next(program.devices);
    std::vector<double> now(program.devices, 1000 * run);
    for (int turn = 0; turn < 100; ++turn) {
      const int d = turn % program.devices;
      for (const auto& list = program.lists[d].body; next[d] < list.size(); ++next[d]) {
        const Instruction& i = list[next[d]];
        Event event{.rank = TopologyOf(program).RankOf({.replica = run / 2, .device = d}),
                    .device = d,
                    .index = static_cast<int32_t>(next[d]),
                    .step = 3 + run % 2,
                    .start = now[d],
                    .duration = 1.0 + (i.op == Op::kBackward ? 2 - d : d)};
        if (Info(i.op).lane == Lane::kSend) {
          event.duration = 0.25;
          now[d] += 0.125;
          arrivals[{run, KindOfMessage(i.op), i.stage, i.micro}] = event.start + 0.75;
        } else if (i.op == Op::kWait && (i.value == Kind::kAct || i.value == Kind::kGrad) &&
                   !i.sent) {
          const auto arrival = arrivals.find({run, i.value, i.stage, i.micro});
          if (arrival == arrivals.end()) break;
          now[d] = std::max(now[d], arrival->second);
          event.duration = now[d] - event.start;
        } else if (Info(i.op).lane == Lane::kCompute) {
          now[d] += event.duration;
        }
        events.push_back(event);
      }
    }
    REQUIRE(next[0] == program.lists[0].body.size());
  }
  return events;
}

TEST_CASE("what a message takes beside its channel") {
  Program program = PlanOf("gpipe", 3, 1, {1, 2, 1});
  program.replicas = 2;
  for (const RankOrder order : {RankOrder::kTpPpDp, RankOrder::kTpDpPp}) {
    program.rank_order = order;
    const Profile profile = ProfileOf(program, EventsWithMessages(program));
    for (int s = 0; s < 2; ++s) {
      CHECK(profile.of(Measured::kComm)[s] == 0.25);
      CHECK(profile.of(Measured::kPost)[s] == 0.125);
      CHECK(profile.of(Measured::kLatency)[s] == 0.5);
    }
    CHECK(profile.of(Measured::kPost)[2] == -1);
    CHECK(profile.of(Measured::kLatency)[2] == -1);
  }
  // A blocking SEND is on the lane for as long as on its channel.
  program.p2p = P2p::kBlocking;
  CHECK(ProfileOf(program, EventsWithMessages(program)).of(Measured::kPost)[0] == -1);
}

// Forwards take 1 and 2 seconds, backwards 3 and 5.
Profile MeasuredOf(const Program& program) {
  Profile profile = ProfileOf(program, {});
  profile.of(Measured::kF) = {1, 2};
  profile.of(Measured::kB) = {3, 5};
  profile.of(Measured::kStep) = {0.5, 0.25};
  profile.of(Measured::kComm) = {0.125, -1};
  return profile;
}

TEST_CASE("a profile is read as it is written") {
  Profile profile = MeasuredOf(PlanOf("1f1b", 2, 3, {3, 1}));
  profile.job.keep = {OperatorKind::kNorm, OperatorKind::kGelu};
  profile.host = "a \"host\"";
  profile.threads = 2;
  profile.cores = 3;
  profile.steps = 7;
  const auto parsed = ParseProfiles(ToJson({&profile, 1}));
  REQUIRE(parsed.status().message() == "");
  const Profile* again = &parsed->front();
  CHECK(again->job == profile.job);
  CHECK(again->seconds == profile.seconds);
  CHECK(again->host == profile.host);
  CHECK(again->threads == 2);
  CHECK(again->cores == 3);
  CHECK(again->steps == 7);
  const auto wrong = [&](const std::string& from, const std::string& to, const std::string& error) {
    std::string text = ToJson({&profile, 1});
    REQUIRE(text.find(from) != text.npos);
    text.replace(text.find(from), from.size(), to);
    INFO(text);
    CHECK(ParseProfiles(text).status().message().find(error) == 0);
  };
  wrong("\"profile\":1", "\"profile\":2", "profile is 2");
  wrong("\"profile\":1", "\"profil\":1", "is no profile");
  wrong("\"f\":[1.0,2.0]", "\"f\":[1.0]", "seconds: f has not 2 numbers");
  wrong("\"f\":[1.0,2.0]", "\"f\":[1.0,-2.0]", "seconds: f of stage 1 is -2.0");
  wrong("\"f\":[1.0,2.0]", "\"f\":[1.0,\"x\"]", "seconds: f of stage 1 is \"x\"");
  wrong("\"f\":[1.0,2.0]", "\"f\":[null,0]", "seconds: f is missing (a forward of some stage");
  wrong("\"seconds\":{", "\"seconds\":{},\"x\":{", "seconds: f is missing");
  wrong("\"b\":[3.0,5.0]", "\"bi\":[3.0,5.0]", "seconds: b is missing (a backward of some stage");
  wrong("\"b\":[3.0,5.0]", "\"b\":[0,0]", "seconds: b is missing");
  wrong("\"layers\":\"3,1\"", "\"layers\":\"3,2\"", "job: ");
  wrong("\"batch\":\"3\"", "\"batch\":\"0\"", "job: batch: ");
  wrong("\"batch\":\"3\"", "\"batch\":3", "job: batch: is no text");
  wrong("\"threads\":2", "\"threads\":-2", "threads is missing");
  wrong("\"cores\":3", "\"cores\":0.5", "cores is missing");
  wrong("\"model\":{", "\"model\":[{", "is no profile");
  wrong("\"n_layer\":4", "\"n_layer\":0", "model: ");
  CHECK(!ParseProfiles("").ok());
}

TEST_CASE("the measured plan costs what was measured") {
  const Program program = PlanOf("1f1b", 2, 1);
  const auto costs = CostsOn({MeasuredOf(program)}, program);
  REQUIRE(costs.ok());
  CHECK(costs->seconds);
  CHECK(costs->f == PerStage{1, 2});
  CHECK(costs->b == PerStage{3, 5});
  CHECK(costs->step == PerStage{0.5, 0.25});
  CHECK(costs->comm[0] == 0.125);
  // Halves were not measured; together they take what a whole one takes, on both stages together.
  CHECK(costs->bi[0] + costs->bw[0] + costs->bi[1] + costs->bw[1] == Approx(8));
  // The same stages, more micro-batches or another order: the same costs.
  CHECK(CostsOn({MeasuredOf(program)}, PlanOf("gpipe", 2, 1))->f == PerStage{1, 2});
}

TEST_CASE("other plans cost what their stages' work says, in measured time") {
  const Profile profile = MeasuredOf(PlanOf("1f1b", 2, 1));
  Profile slower = profile;
  for (auto& row : slower.seconds)
    for (double& seconds : row) seconds *= seconds > 0 ? 3 : 1;
  const auto sum = [](const PerStage& values) {
    double all = 0;
    for (const double value : values) all += value;
    return all;
  };
  // One stage: all the work that was measured on two.
  const Program one = PlanOf("1f1b", 1, 1);
  CHECK(sum(CostsOn({profile}, one)->f) == Approx(3));
  CHECK(sum(CostsOn({profile}, one)->b) == Approx(8));
  CHECK(sum(CostsOn({profile}, one)->step) == Approx(0.75));
  // Four stages on two devices: each costs half of what it says.
  const Program four = PlanOf("interleaved", 2, 1);
  CHECK(sum(CostsOn({profile}, four)->f) / 2 == Approx(3));
  CHECK(sum(CostsOn({slower}, four)->f) / 2 == Approx(9));
  CHECK(sum(CostsOn({slower}, four)->bi) == Approx(3 * sum(CostsOn({profile}, four)->bi)));
  // The same stages, whose backwards have less to do.
  Program keeps = PlanOf("1f1b", 2, 1);
  keeps.job->keep = {OperatorKind::kNorm, OperatorKind::kGelu};
  CHECK(sum(CostsOn({profile}, keeps)->f) == Approx(3));
  CHECK(sum(CostsOn({profile}, keeps)->b) < 7.9);
  // Twice the sequences: less than twice the time, as launches do not grow.
  const double twice = sum(CostsOn({profile}, PlanOf("1f1b", 2, 2))->f);
  CHECK(twice > 3.01);
  CHECK(twice <= 6);
  const Machine machine = FitMachine({profile});
  CHECK(FitMachine({slower}).flops[0] == Approx(machine.flops[0] / 3));
  const CostModel fitted = *CostsOn(machine, PlanOf("1f1b", 2, 1));
  CHECK(sum(fitted.f) + sum(fitted.b) == Approx(11));
}

// Two devices measured no reduction; those of replicas are not free because of that.
TEST_CASE("what was not measured costs what the machine says") {
  Profile profile = MeasuredOf(PlanOf("1f1b", 2, 1));
  Program copied = PlanOf("1f1b", 2, 1);
  copied.replicas = 2;
  const CostModel costs = *CostsOn({profile}, copied);
  CHECK(costs.reduce[0] > 0);
  CHECK(CostsOn({profile}, PlanOf("chimera", 2, 1))->reduce[0] > 0);
  CHECK(CostsOn({profile}, PlanOf("1f1b", 2, 1))->reduce[0] == 0);
  profile.of(Measured::kReduce) = {1, 1};
  CHECK(CostsOn({profile}, copied)->reduce[0] + CostsOn({profile}, copied)->reduce[1] == Approx(2));
  CHECK(CostsOn({profile}, copied)->comm[0] == 0.125);
  CHECK(CostsOn({profile}, copied)->post[0] == FindMachine("cpu")->post);
  CHECK(CostsOn({profile}, copied)->latency[0] == FindMachine("cpu")->inside.latency);
  // What messages take beside their bytes is the same for all.
  profile.of(Measured::kPost) = {3, -1}, profile.of(Measured::kLatency) = {5, -1};
  CHECK(CostsOn({profile}, PlanOf("interleaved", 2, 2))->post == PerStage(4, 3));
  CHECK(CostsOn({profile}, PlanOf("interleaved", 2, 2))->latency == PerStage(4, 5));
  // Messages, too: on one device there are none.
  Profile alone = ProfileOf(PlanOf("1f1b", 1, 1), {});
  alone.of(Measured::kF) = {3}, alone.of(Measured::kB) = {8};
  CHECK(CostsOn({alone}, PlanOf("1f1b", 2, 1))->comm[0] > 0);
  // Larger messages take longer in proportion, however the stages are cut.
  CHECK(CostsOn({profile}, PlanOf("interleaved", 2, 2))->comm[2] == Approx(0.25));
}

TEST_CASE("reductions take the time of kernels where ranks have no core to spare") {
  const Program program = PlanOf("1f1b", 2, 1);
  Profile profile = MeasuredOf(program);
  const auto contention = [&](int cores) {
    profile.cores = cores;
    return CostsOn({profile}, program)->contention.at(0);
  };
  profile.threads = 2;
  CHECK(contention(0) == 1);
  CHECK(contention(2) == 1);
  CHECK(contention(3) == 0);
}

// Micro-batches of four sequences take twice as long as follows from those of one.
TEST_CASE("between measured sizes of a micro-batch the costs lie between") {
  const auto busy = [](const Profiles& profiles, int size) {
    const CostModel costs = *CostsOn(profiles, PlanOf("gpipe", 1, size));
    return costs.f[0] + costs.b[0];
  };
  const Profile one = MeasuredOf(PlanOf("1f1b", 2, 1));
  Profile four = MeasuredOf(PlanOf("1f1b", 2, 4));
  const CostModel costs = *CostsOn({one}, PlanOf("1f1b", 2, 4));
  for (int s = 0; s < 2; ++s) {
    four.of(Measured::kF)[s] = 2 * costs.f[s];
    four.of(Measured::kB)[s] = 2 * costs.b[s];
  }
  CHECK(busy({one, four}, 1) == Approx(11));
  CHECK(busy({one, four}, 2) == Approx(1.5 * busy({one}, 2)));
  CHECK(busy({four, one}, 4) == Approx(2 * busy({one}, 4)));
  CHECK(busy({four, one}, 8) == Approx(2 * busy({one}, 8)));
  // The stages of either one cost what was measured.
  CHECK(CostsOn({one, four}, PlanOf("1f1b", 2, 4))->f == PerStage(four.of(Measured::kF)));
  CHECK(CostsOn({one, four}, PlanOf("1f1b", 2, 1))->f == PerStage(one.of(Measured::kF)));
  // Of two of one size both count.
  Profile slower = one;
  for (auto& row : slower.seconds)
    for (double& seconds : row) seconds *= 3;
  CHECK(busy({one, slower}, 1) == Approx(22));
  CHECK(CostsOn({one, slower}, PlanOf("1f1b", 2, 1))->f == PerStage{2, 4});
  // With two peers those of two peers do.
  Program peers = PlanOf("gpipe", 1, 1);
  peers.job->tp = 2;
  Profile two = slower;
  two.job.tp = 2;
  CHECK(CostsOn({one, two}, peers)->f == CostsOn({two}, peers)->f);
  CHECK(CostsOn({one, two}, PlanOf("gpipe", 1, 1))->f == CostsOn({one}, PlanOf("gpipe", 1, 1))->f);
  Profile other = one;
  other.threads = 2;
  CHECK(CheckAlike(one, one).ok());
  CHECK(CheckAlike(one, other).message() == "was measured with 2 threads, the first one with 1");
}

TEST_CASE("costs of another model or type are refused") {
  const Program program = PlanOf("1f1b", 2, 1);
  const Profile profile = MeasuredOf(program);
  Program other = program;
  other.job->dtype = Dtype::kBf16;
  CHECK(CostsOn({profile}, other).status().message() ==
        "was measured with fp32 on cpu, the plan has bf16 on cpu");
  other = program;
  other.job->model.vocab_size = 64;
  CHECK(CostsOn({profile}, other).status().message() ==
        "was measured of another model (the plan's)");
}

}  // namespace
}  // namespace pp
