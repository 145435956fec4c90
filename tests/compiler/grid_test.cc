// Every scheme over many sizes and pass lists, asynchronous and blocking: each plan verifies after
// each pass, survives text and file, has the bubble and the peaks that its paper states
// (compiler/README.md, "Schemes"), and blocking costs no more time than it should.
//
//     bazel run //tests:grid_test              a seeded sample, as in tools/test
//     bazel run //tests:grid_test -- --all     all of them
//
// Its last line is a digest of all plans, byte by byte: a change that should leave every plan as it
// was leaves the digest as it was.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <random>

#include "compiler/compile.h"
#include "compiler/simulate.h"
#include "schema/format/file.h"
#include "schema/proof/verify.h"
#include "schema/text.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

bool all_plans = false;

// Of the plans seen so far, in their order.
struct Digest {
  uint64_t plans = 0, sum = 0;
  void Add(const Program& program) {
    constexpr size_t kChecksum = 8;  // bytes, at the end of a plan
    const auto bytes = Encode(program);
    REQUIRE(bytes.ok());
    uint64_t one = 0;
    std::memcpy(&one, bytes->data() + bytes->size() - kChecksum, kChecksum);
    sum = sum * 1099511628211u + one;
    ++plans;
  }
};
Digest digest;

constexpr int kDevices = 8, kMicros = 32, kParts = 4;

const std::vector<std::string> kMario = {"apply-checkpoint", "apply-checkpoint,overlap-recompute",
                                         "apply-checkpoint,overlap-recompute,remove-redundancy",
                                         "mario"};

// One scheme and size.
struct Case {
  const Scheme* scheme;
  Shape shape;
  std::string Name() const {
    return std::string(scheme->name) + " D " + std::to_string(shape.devices) + " M " +
           std::to_string(shape.microbatches) + " V " + std::to_string(shape.stages_per_device);
  }
};

// Everything that a scheme accepts.
std::vector<Case> LegalCases() {
  std::vector<Case> cases;
  for (const Scheme& scheme : Schemes())
    for (int devices = 1; devices <= kDevices; ++devices)
      for (int micros = 1; micros <= kMicros; ++micros)
        for (int parts = 1; parts <= kParts; ++parts) {
          const bool fixed = scheme.parts == Scheme::kFixed;
          if (fixed && parts != scheme.stages_per_device) continue;
          const Shape shape{.devices = devices, .microbatches = micros, .stages_per_device = parts};
          if (scheme.check(shape).ok()) cases.push_back({&scheme, shape});
        }
  return cases;
}

// A seeded sample of the cases, or all.
std::vector<Case> Sample(const std::vector<Case>& cases, size_t most) {
  if (all_plans || cases.size() <= most) return cases;
  std::vector<Case> sample = cases;
  std::mt19937 random(20260101);
  std::shuffle(sample.begin(), sample.end(), random);
  sample.resize(most);
  return sample;
}

bool HasFlush(const Scheme& scheme) { return !scheme.name.starts_with("pipedream"); }
bool HasWholeBackwards(const Scheme& scheme) {
  for (const char* prefix : {"zb-", "v-", "dualpipe"})
    if (scheme.name.starts_with(prefix)) return false;
  return HasFlush(scheme);
}

std::vector<std::string> PassListsOf(const Scheme& scheme) {
  std::vector<std::string> lists = {""};
  if (!HasWholeBackwards(scheme)) return lists;
  lists.insert(lists.end(), kMario.begin(), kMario.end());
  lists.push_back("split-backward");
  return lists;
}

CompileOptions OptionsOf(const Case& c, const std::string& passes, P2p p2p) {
  return {.scheme = std::string(c.scheme->name), .shape = c.shape, .passes = passes, .p2p = p2p};
}

Prediction MustSimulate(const Program& program, const std::string& costs) {
  std::vector<WaitsFor> waits_for;
  const Status status = Verify(program, Depth::kPlan, &waits_for);
  INFO(status.message());
  REQUIRE(status.ok());
  const auto model = ParseCosts(costs, program.stages);
  REQUIRE(model.ok());
  auto prediction = Simulate(program, waits_for, *model);
  REQUIRE(prediction.ok());
  digest.Add(program);
  return std::move(*prediction);
}

// Text drops the memory, which plan-memory finds again; the file keeps everything.
void CheckRoundTrips(const Program& program) {
  auto parsed = Parse(Print(program), "text");
  INFO(parsed.status().message());
  REQUIRE(parsed.ok());
  REQUIRE(Lower(*parsed, Form::kLists, {}).ok());
  CHECK(*parsed == program);
  const auto bytes = Encode(program);
  REQUIRE(bytes.ok());
  const auto decoded = Decode(*bytes, "file");
  REQUIRE(decoded.ok());
  CHECK(*decoded == program);
}

// Blocking costs nothing if every message finds both its ends between two instructions.
double MostForBlocking(const Scheme& scheme, const std::string& passes) {
  const std::string_view name = scheme.name;
  const bool free = name == "gpipe" || name == "chimera" || name == "fold-aiao" || name == "zb-h1";
  return name == "1f1b" || (free && passes.empty()) ? 1 : 1.2;
}

// Known properties of a scheme for forwards of 1 and backwards of 2, halves of 1.
struct Known {
  double idle = -1;           // of the busiest device
  std::vector<double> peaks;  // by device; empty: the highest is `peak`
  double peak = -1;
};

Known KnownOf(const Case& c) {
  const std::string_view name = c.scheme->name;
  const int devices = c.shape.devices, micros = c.shape.microbatches;
  const int parts = c.shape.stages_per_device;
  Known known;
  auto peaks = [&](auto of_device) {
    for (int d = 0; d < devices; ++d) known.peaks.push_back(of_device(d));
  };
  if (name == "gpipe" || name == "fold-aiao") {
    known.idle = 3.0 * (devices - 1) / parts;
    known.peak = micros;
  } else if (name == "1f1b") {
    known.idle = 3 * (devices - 1);
    peaks([&](int d) { return std::min(devices - d, micros); });
  } else if (name == "interleaved" || name == "fold-fifo") {
    known.idle = 3.0 * (devices - 1) / parts;
    const bool all = name == "fold-fifo" && micros == devices;
    peaks([&](int d) {
      const int ahead = 2 * (devices - d - 1) + (parts - 1) * devices + 1;
      return all ? micros : std::min(ahead, micros * parts) / static_cast<double>(parts);
    });
  } else if (name == "chimera") {
    if (micros == devices) known.idle = 2 * (devices - 2);
    if (micros >= devices)
      peaks([&](int d) { return devices / 2 + 1 + std::min(d, devices - 1 - d); });
  } else if (name.starts_with("pipedream")) {
    known.idle = 0;
    peaks([&](int d) { return devices - d; });
  } else if (name == "zb-h1") {
    if (micros >= devices) known.idle = devices - 1;
    known.peak = std::min(devices, micros);
  } else if (name == "zb-h2") {
    known.idle = devices - 1;
    known.peak = 2 * devices - 1;
  } else if (name == "zb-v") {
    if (micros >= 2 * devices - 1) known.idle = (devices - 1) / 2.0;
    if (micros >= 2 * devices - 1) known.peak = devices;
  } else if (name == "v-half") {
    if (micros >= devices && devices > 1)
      known.idle = devices % 2 == 0 ? 1.5 * (devices - 1) : 1.5 * devices - 2;
    if (micros >= 2 * devices) known.peak = (devices + 2) / 2;
  } else if (name == "v-min") {
    if (micros >= devices && devices > 1) known.idle = 2 * devices - (devices % 3 == 0 ? 1.5 : 2.5);
    if (micros >= 2 * devices) known.peak = (devices + 4) / 3;
  } else if (name == "dualpipe") {
    known.idle = 2 * (devices / 2 - 1);
    known.peak = devices + 1;
  } else if (name == "dualpipe-v") {
    known.idle = devices - 1;
    known.peak = devices + 0.5;
  }
  return known;
}

void CheckKnown(const Case& c, const Prediction& prediction) {
  const Known known = KnownOf(c);
  double busy = 0, peak = 0;
  for (const DevicePrediction& device : prediction.devices) {
    busy = std::max(busy, device.busy);
    peak = std::max(peak, device.peak_activations);
  }
  if (known.idle >= 0) CHECK(prediction.makespan - busy == Approx(known.idle).margin(1e-9));
  if (known.peak >= 0) CHECK(peak == Approx(known.peak));
  for (size_t d = 0; d < known.peaks.size(); ++d)
    CHECK(prediction.devices[d].peak_activations == Approx(known.peaks[d]));
}

}  // namespace

TEST_CASE("every scheme verifies after every pass list, with its bubble and its peaks") {
  int plans = 0;
  double worst = 1;
  std::string worst_case;
  for (const Case& c : Sample(LegalCases(), 600)) {
    for (const std::string& passes : PassListsOf(*c.scheme)) {
      INFO(c.Name() << " passes " << passes);
      const Program async = MustCompile(OptionsOf(c, passes, P2p::kAsync));
      const Prediction prediction = MustSimulate(async, "f=1,b=2");
      if (passes.empty()) CheckKnown(c, prediction);
      const Program blocking = MustCompile(OptionsOf(c, passes, P2p::kBlocking));
      const double ratio = MustSimulate(blocking, "f=1,b=2").makespan / prediction.makespan;
      CHECK(ratio <= MostForBlocking(*c.scheme, passes) * (1 + 1e-9));
      if (ratio > worst) worst = ratio, worst_case = c.Name() + " passes " + passes;
      if (c.shape.microbatches <= 8 && passes.size() <= 16) {
        CheckRoundTrips(async);
        CheckRoundTrips(blocking);
      }
      plans += 2;
    }
  }
  std::printf("%d plans verified; blocking takes at most %.3f of the time (%s)\n", plans, worst,
              worst_case.c_str());
}

TEST_CASE("fit-memory's plans verify, fit, and are not slower than Mario's") {
  const size_t every = all_plans ? 12 : 120;  // a search takes half a second
  int plans = 0;
  const std::vector<Case> cases = Sample(LegalCases(), 600);
  for (size_t k = 0; k < cases.size(); k += every) {
    const Case& c = cases[k];
    if (!HasFlush(*c.scheme)) continue;
    const Prediction plain = MustSimulate(MustCompile(OptionsOf(c, "", P2p::kAsync)), "f=1,b=2");
    double peak = 0;
    for (const auto& device : plain.devices) peak = std::max(peak, device.peak_activations);
    const double limit = std::max(1.0, peak / 2);
    INFO(c.Name() << " limit " << limit);
    double makespan = 0;
    for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
      CompileOptions options = OptionsOf(c, "", p2p);
      options.fit.limit.values = {limit};
      const Prediction prediction = MustSimulate(MustCompile(options), "f=1,b=2");
      for (const auto& device : prediction.devices) CHECK(device.peak_activations <= limit + 1e-9);
      // At zero communication time blocking costs at most a fifth.
      if (p2p == P2p::kBlocking) CHECK(prediction.makespan <= 1.2 * makespan);
      if (p2p == P2p::kAsync) makespan = prediction.makespan;
      ++plans;
    }
    if (!HasWholeBackwards(*c.scheme)) continue;
    const Program mario = MustCompile(OptionsOf(c, "mario", P2p::kAsync));
    CHECK(makespan <= MustSimulate(mario, "f=1,b=2").makespan + 1e-9);
  }
  std::printf("%d plans of fit-memory verified\n", plans);
}

TEST_CASE("an illegal size is refused with the legal ones") {
  int refused = 0;
  for (const Scheme& scheme : Schemes())
    for (int devices = 1; devices <= kDevices; ++devices)
      for (int micros = 1; micros <= kMicros; ++micros)
        for (int parts = 1; parts <= kParts; ++parts) {
          const Case c{&scheme, {devices, micros, parts}};
          if (scheme.check(c.shape).ok() &&
              (scheme.parts == Scheme::kFree || parts == scheme.stages_per_device))
            continue;
          INFO(c.Name());
          const auto built = BuildSchedule(std::string(scheme.name), c.shape);
          REQUIRE(!built.ok());
          CHECK(built.status().message().starts_with("--"));
          CHECK(built.status().message().ends_with(")"));
          ++refused;
        }
  std::printf("%d sizes refused\n", refused);
}

TEST_CASE("each of Mario's passes is never slower than the one before, and has its closed form") {
  for (const char* scheme : {"1f1b", "chimera", "interleaved"})
    for (int devices = 2; devices <= kDevices; ++devices)
      for (int micros = 2; micros <= kMicros; micros += all_plans ? 1 : 5)
        for (auto [f, b] : {std::pair{1, 2}, {10, 16}, {2, 3}}) {
          const int parts = std::string(scheme) == "interleaved" ? 2 : 1;
          Case c{nullptr, {devices, micros, parts}};
          for (const Scheme& row : Schemes())
            if (row.name == scheme) c.scheme = &row;
          if (!c.scheme->check(c.shape).ok()) continue;
          const std::string costs = "f=" + std::to_string(f) + ",b=" + std::to_string(b);
          std::vector<double> makespans;
          for (const std::string& passes : kMario) {
            CompileOptions options = OptionsOf(c, passes, P2p::kAsync);
            options.costs = costs;
            makespans.push_back(MustSimulate(MustCompile(options), costs).makespan);
          }
          INFO(c.Name() << " " << costs);
          for (size_t k = 1; k < makespans.size(); ++k)
            CHECK(makespans[k] <= makespans[k - 1] * (1 + 1e-9));
          if (c.scheme->name != "1f1b") continue;
          // With r = f (reference: Mario, closed forms for 1F1B).
          const double base = (micros + devices - 1.0) * (f + b), all = f + f + b;
          const double drain = micros * all + (devices - 2) * (f + b);
          CHECK(makespans[0] == Approx((micros + devices - 1) * all));
          CHECK(makespans[1] == Approx(micros * all + (devices - 1) * (f + b)));
          CHECK(makespans[2] == Approx(drain + std::max(0, b - f)));
          CHECK(makespans[3] == Approx(std::max(base, drain)));
        }
}

TEST_CASE("Mario's figure 2") {
  const std::vector<double> makespans = {28, 25, 23, 22};
  for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
    CompileOptions options{.scheme = "1f1b", .shape = {4, 4, 1}, .p2p = p2p};
    const Prediction plain = MustSimulate(MustCompile(options), "f=1,b=2");
    CHECK(plain.makespan == 21);
    for (int d = 0; d < 4; ++d) CHECK(plain.devices[d].peak_activations == 4 - d);
    for (size_t k = 0; k < kMario.size(); ++k) {
      options.passes = kMario[k];
      const Prediction prediction = MustSimulate(MustCompile(options), "f=1,b=2");
      CHECK(prediction.makespan == makespans[k]);
      for (const DevicePrediction& device : prediction.devices) CHECK(device.peak_activations == 1);
    }
  }
}

TEST_CASE("interleaved with groups of another size reaches the same makespan") {
  for (P2p p2p : {P2p::kAsync, P2p::kBlocking})
    for (auto [micros, group] : {std::pair{10, 5}, {9, 5}, {15, 5}, {8, 8}}) {
      const Program program =
          MustCompile({.scheme = "interleaved", .shape = {4, micros, 2, group}, .p2p = p2p});
      CHECK(MustSimulate(program, "f=1,b=2").makespan == Approx(3 * micros + 4.5));
    }
}

TEST_CASE("chimera with several pairs of pipes") {
  for (P2p p2p : {P2p::kAsync, P2p::kBlocking})
    for (auto [devices, pairs, micros] :
         {std::tuple{4, 2, 4}, {4, 2, 8}, {8, 2, 8}, {8, 4, 16}, {12, 3, 12}}) {
      Shape shape{.devices = devices, .microbatches = micros, .pipe_pairs = pairs};
      const Program program = MustCompile({.scheme = "chimera", .shape = shape, .p2p = p2p});
      CHECK(program.pipes.size() == static_cast<size_t>(2 * pairs));
      MustSimulate(program, "f=1,b=1");
    }
}

TEST_CASE("chimera's bubble with backwards as long as forwards, for one unit and for two") {
  for (int devices = 2; devices <= kDevices; devices += 2)
    for (int micros : {devices, 2 * devices}) {
      const Program program = MustCompile({.scheme = "chimera", .shape = {devices, micros, 1}});
      CHECK(MustSimulate(program, "f=1,b=1").makespan == 2 * micros + devices - 2);
    }
}

TEST_CASE("hanayo's bubble with backwards as long as forwards") {
  for (int devices = 2; devices <= kDevices; ++devices)
    for (int micros : {devices, 2 * devices, 4 * devices})
      for (int parts : {2, 4}) {
        INFO("D " << devices << " M " << micros << " V " << parts);
        const Prediction prediction = MustSimulate(
            MustCompile({.scheme = "hanayo", .shape = {devices, micros, parts}}), "f=1,b=1");
        CHECK(prediction.makespan == Approx(2 * micros + (devices - 1) * 2.0 / parts));
        for (const DevicePrediction& device : prediction.devices)
          CHECK(device.peak_activations <= devices);
      }
}

TEST_CASE("other costs: the longest chain decides, and nothing is late") {
  // GPipe with f = 2, b = 3: (M + D - 1)(f + b).
  for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
    const Program program =
        MustCompile({.scheme = "gpipe", .shape = {4, 8, 1}, .p2p = p2p, .costs = "f=2,b=3"});
    CHECK(MustSimulate(program, "f=2,b=3").makespan == Approx((8 + 3) * 5.0));
  }
}

TEST_CASE("messages take their channel for comm, and arrive a latency later") {
  // In 1F1B every message is on the critical path once going in and once coming out.
  const Program program = MustCompile({.scheme = "1f1b", .shape = {2, 1, 1}});
  CHECK(MustSimulate(program, "f=1,b=2,comm=0.5").makespan == Approx(6 + 2 * 0.5));
  CHECK(MustSimulate(program, "f=1,b=2,latency=0.25").makespan == Approx(6 + 2 * 0.25));
  // GPipe's forwards leave device 0 once per unit; a channel that takes two is the bottleneck, a
  // latency is not.
  auto gpipe = [](const std::string& costs) {
    const Program program = MustCompile({.scheme = "gpipe", .shape = {2, 8, 1}, .costs = costs});
    return MustSimulate(program, costs).makespan;
  };
  CHECK(gpipe("f=1,b=2,comm=2") == Approx((1 + 8 * 2 + 1) + (8 * 2 + 2 + 2)));
  CHECK(gpipe("f=1,b=2,latency=2") == Approx(9 * 3 + 2 * 2));
}

TEST_CASE("costs of zero still give plans without deadlock") {
  for (const Scheme& scheme : Schemes())
    for (P2p p2p : {P2p::kAsync, P2p::kBlocking})
      for (const char* costs : {"f=0,b=0", "f=0,b=1", "f=1,b=0"}) {
        CompileOptions options{.scheme = std::string(scheme.name), .p2p = p2p, .costs = costs};
        options.shape = {4, 8, scheme.stages_per_device};
        MustCompile(options);
      }
}

}  // namespace pp

int main(int argc, char** argv) {
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], "--all") == 0) {
      pp::all_plans = true;
    } else {
      rest.push_back(argv[i]);
    }
  }
  const int status = Catch::Session().run(static_cast<int>(rest.size()), rest.data());
  std::printf("digest of %llu plans: %016llx\n", static_cast<unsigned long long>(pp::digest.plans),
              static_cast<unsigned long long>(pp::digest.sum));
  return status;
}
