// pipec tune against all plans of small spaces, compiled and simulated one by one.
#include "compiler/tune/tune.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "compiler/simulate.h"
#include "compiler/tune/bounds.h"
#include "compiler/tune/pick.h"
#include "schema/proof/verify.h"
#include "schema/text.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

struct Exact {
  double seconds = HUGE_VAL, bytes = 0;
  bool legal = false;
};
Exact ExactOf(const CompileOptions& compile) {
  Exact exact;
  const auto program = Compile(compile);
  std::vector<WaitsFor> waits_for;
  if (!program.ok() || program->MakesVersions() || program->overlaps) return exact;
  REQUIRE(Verify(*program, Depth::kPlan, &waits_for).ok());
  const auto prediction = Simulate(*program, waits_for, *CostsOf(*program));
  REQUIRE(prediction.ok());
  exact.legal = true;
  exact.seconds = prediction->makespan;
  for (const DeviceList& list : program->lists)
    exact.bytes = std::max(exact.bytes, static_cast<double>(list.arena_bytes));
  return exact;
}

PriceSource PricesOf(const TuneOptions& options) {
  if (!options.profiles.empty()) return {.profiles = options.profiles};
  return {.machine = options.machine};
}

// The fastest of all that fit; less is kept, or more recomputed, where a plan does not fit without.
class All {
 public:
  explicit All(const TuneOptions& options) : options_(options) {}

  double Fastest() {
    for (const Scheme& scheme : Schemes())
      for (int pp = 1; pp <= options_.devices; ++pp)
        for (int tp = 1; pp * tp <= options_.devices; ++tp)
          for (int size = 1; size <= options_.batch; ++size) {
            const int dp = options_.devices / pp / tp;
            if (pp * tp * dp != options_.devices || options_.batch % (dp * size) != 0) continue;
            if (options_.pp > 0 && pp != options_.pp) continue;
            const bool free = scheme.parts == Scheme::kFree;
            for (int v = 0; v <= (free ? (options_.job.model.layers + 2) / pp : 0); ++v)
              for (const bool shares : {false, true})
                if (tp > 1 || !shares) Try(scheme, pp, tp, dp, size, v, shares);
          }
    return fastest_;
  }

 private:
  void Try(const Scheme& scheme, int pp, int tp, int dp, int size, int v, bool shares) {
    CompileOptions compile{.scheme = std::string(scheme.name),
                           .shape = {.devices = pp,
                                     .microbatches = options_.batch / dp / size,
                                     .stages_per_device = v},
                           .replicas = dp,
                           .prices = PricesOf(options_),
                           .job = options_.job,
                           .balance_layers = true};
    compile.job.tp = tp;
    compile.job.micro_batch_size = size;
    compile.job.sequence_parallel = shares;
    const bool copies = dp > 1 || scheme.map == StageMap::kBoth;
    for (compile.zero = 0; compile.zero <= (copies ? 1 : 0); ++compile.zero)
      for (const RankOrder order : {RankOrder::kTpPpDp, RankOrder::kTpDpPp}) {
        if (order != RankOrder::kTpPpDp && (pp == 1 || dp == 1)) continue;
        compile.rank_order = order;
        compile.passes.clear();
        TryWays(compile);
      }
  }

  void TryWays(CompileOptions compile) {
    using Kinds = std::vector<OperatorKind>;
    const bool gpt2 = options_.job.model.family->model_type == std::string_view("gpt2");
    const OperatorKind wide = gpt2 ? OperatorKind::kGelu : OperatorKind::kSwiGlu;
    const Kinds norm = compile.job.sequence_parallel ? Kinds() : Kinds{OperatorKind::kNorm};
    Kinds all = norm;
    all.push_back(wide);
    compile.job.keep = all;
    if (Fits(compile)) return;
    for (const Kinds& some : {norm, Kinds{wide}}) {
      compile.job.keep = some;
      Fits(compile);
    }
    compile.job.keep.clear();
    if (Fits(compile)) return;
    for (const char* passes : {"mario", "apply-checkpoint"}) {
      compile.passes = passes;
      Fits(compile);
    }
  }

  bool Fits(const CompileOptions& compile) {
    const Exact exact = ExactOf(compile);
    if (exact.legal && exact.bytes <= options_.memory) fastest_ = std::min(fastest_, exact.seconds);
    return exact.bytes <= options_.memory;
  }

  const TuneOptions& options_;
  double fastest_ = HUGE_VAL;
};

TuneOptions Space(const std::string& family, int devices, int batch, double memory) {
  TuneOptions options{
      .machine = Machines()[0], .devices = devices, .memory = memory, .batch = batch};
  options.machine.node = 2;
  // Slow enough for a small model's operations to matter beside launches and latencies.
  for (double& flops : options.machine.flops) flops /= 1e5;
  options.job.model = SmallModel(family, false, 4, 128);
  options.job.sequence_length = 128;
  return options;
}

Profile ProfileWithCheapWholes(const Job& job) {
  Profile profile{.job = job};
  profile.job.layers_per_stage = {2, 2};
  for (auto& row : profile.seconds) row = {-1, -1};
  profile.of(Measured::kF) = profile.of(Measured::kB) = {1, 1};
  profile.of(Measured::kBi) = profile.of(Measured::kBw) = {1, 1};
  profile.of(Measured::kStep) = {0.1, 0.1};
  profile.of(Measured::kComm) = {0.01, -1};
  return profile;
}

// The pick is as fast as the fastest but for the error, no exact candidate of that kind is simpler,
// and none that was left at its bound could be, unless very many are.
void CheckPick(const TuneOptions& options, const Tuned& tuned) {
  const double limit = tuned.best.front().seconds * (1 + ModelError(options));
  const Candidate& pick = tuned.best[tuned.pick];
  CHECK(pick.seconds <= limit);
  for (const Candidate& other : tuned.best)
    if (other.seconds <= limit) CHECK(ComplexityOf(pick) <= ComplexityOf(other));
  const Parts& parts = pick.parts;
  CHECK(parts.compute + parts.bubble + parts.messages + parts.reductions + parts.optimizer ==
        Approx(pick.seconds));
  for (const double part : {parts.compute, parts.bubble, parts.messages, parts.reductions})
    CHECK(part >= -1e-12 * pick.seconds);
}

TEST_CASE("the best plan is that of trying all, and no bound is above a plan") {
  enum class By { kMachine, kFlops, kProfile, kSlowLinks, kContention };
  struct Row {
    std::string family;
    int pp;
    double memory;
    By by = By::kMachine;
  };
  const Row rows[] = {{"gpt2", 0, 1e9},
                      {"gpt2", 0, 9.4e5},
                      {"gpt2", 2, 1e9},
                      {"llama", 0, 1.04e6},
                      {"llama", 0, 9.4e5},
                      {"llama", 4, 1e9},
                      {"gpt2", 0, 1e9, By::kFlops},
                      {"gpt2", 0, 1e9, By::kProfile},
                      {"gpt2", 1, 1e9, By::kSlowLinks},
                      {"gpt2", 0, 1e9, By::kContention}};
  for (const auto& [family, pp, memory, by] : rows) {
    TuneOptions options = Space(family, 4, 8, memory);
    options.pp = pp;
    // Many plans take equally long.
    if (by == By::kFlops) options.machine = *MachineOf("1e12");
    // Reductions that one by one go on beside backwards make several stages on one device pay.
    options.machine.contention = by == By::kContention;
    if (by == By::kSlowLinks || by == By::kContention)
      for (Link* link : {&options.machine.inside, &options.machine.between}) *link = {1e8, 0};
    // Whole backwards are cheaper than their halves, which dualpipe has beside them.
    if (by == By::kProfile) options.profiles = {ProfileWithCheapWholes(options.job)};
    INFO(family << " pp " << pp << " memory " << memory);
    const auto tuned = Tune(options);
    INFO(tuned.status().message());
    const double fastest = All(options).Fastest();
    REQUIRE(tuned.ok() == (fastest < HUGE_VAL));
    if (!tuned.ok()) continue;
    // fit-memory, which is tried of few, may find a faster one.
    const Candidate& first = tuned->best[0];
    const bool fitted = !first.compile.fit.limit.values.empty();
    if (!fitted) CHECK(first.seconds == Approx(fastest).epsilon(1e-9));
    CHECK(first.seconds <= fastest * (1 + 1e-9));
    CheckPick(options, *tuned);
    const Candidate& pick = tuned->best[tuned->pick];
    if (by == By::kSlowLinks) CHECK(Compile(first.compile)->stages > 1);
    const Exact best = ExactOf(pick.compile);
    CHECK(best.seconds == pick.seconds);
    CHECK(best.bytes == pick.bytes);
    CHECK(best.bytes <= memory);
    double planned = 0;
    for (const DeviceList& list : tuned->plan->lists)
      planned = std::max(planned, static_cast<double>(list.arena_bytes));
    CHECK(planned == best.bytes);
    CHECK(Print(*tuned->plan) == Print(*Compile(pick.compile)));
    for (size_t i = 1; i < tuned->best.size(); ++i)
      CHECK(tuned->best[i - 1].seconds <= tuned->best[i].seconds * (1 + 1e-9));
    for (const Candidate& candidate : tuned->rest) {
      const Exact exact = ExactOf(candidate.compile);
      INFO(candidate.compile.scheme
           << " " << candidate.compile.shape.devices << " " << candidate.compile.passes << " "
           << (exact.legal ? "" : Compile(candidate.compile).status().message()));
      if (candidate.open) continue;                              // a bound on several
      CHECK((exact.legal || candidate.compile.passes.empty()));  // its command runs
      CHECK(candidate.seconds <= exact.seconds * (1 + 1e-9));
      CHECK(candidate.bytes <= std::max(exact.bytes, exact.legal ? 0 : HUGE_VAL));
    }
    for (const Candidate& candidate : tuned->large) {
      CHECK(candidate.bytes > memory);
      const Exact exact = ExactOf(candidate.compile);
      if (exact.legal) CHECK(exact.bytes >= candidate.bytes);
    }
  }
}

// Where memory is scarce, Mario's passes recompute nearly all. The bounds on work know that before
// forwards move, which takes long and makes none of these fast enough.
TEST_CASE("what recomputes too much is not scheduled") {
  const auto tuned = Tune(Space("llama", 8, 64, 1e6));
  REQUIRE(tuned.ok());
  int all = 0;
  for (const Candidate& candidate : tuned->rest) {
    if (candidate.compile.passes != "mario") continue;
    ++all;
    CHECK(candidate.level == Level::kWork);
  }
  CHECK(all > 100);
}

// The last stage's 8 of 15: from its last backward at 7, while grad s0 m1 makes its way back
// until 9.
TEST_CASE("what a device loses to reductions may fall into the way back") {
  const Program plan = MustCompile({.scheme = "1f1b", .shape = {2, 2}, .replicas = 2});
  const CostModel costs = *ParseCosts("f=1,b=2,bi=1,bw=1,r=1,reduce=0:8,contention=1", 2);
  std::vector<WaitsFor> waits_for;
  REQUIRE(Verify(plan, Depth::kPlan, &waits_for).ok());
  CHECK(Simulate(plan, waits_for, costs)->makespan == 15);
  CHECK(WorkBound(plan, costs, 2, false) == 15);
}

// At a sixteenth and at sixteen times a link's bandwidth all plans are searched beside the pick as
// it is; and where it changes, the plan that is named is faster than the pick by more than the
// error.
TEST_CASE("the pick depends on links where it is said to") {
  int changes = 0;
  for (const double between : {1e6, 1e7, 1e8, 1e9}) {
    TuneOptions options = Space("llama", 4, 8, 1e9);
    options.mario = false;
    options.machine.inside = {3 * between, 0};
    options.machine.between = {between, 0};
    const auto tuned = Tune(options);
    REQUIRE(tuned.ok());
    REQUIRE(tuned->dependences.size() == 2);
    const CompileOptions& pick = tuned->best[tuned->pick].compile;
    for (const Dependence& dependence : tuned->dependences) {
      const auto scaled = [&](double factor) {
        Machine machine = options.machine;
        (dependence.price == "inside" ? machine.inside : machine.between).bandwidth *= factor;
        return machine;
      };
      // A plan as it is, on another machine.
      const auto seconds = [&](const CompileOptions& compile, double factor) {
        const Program plan = *Compile(compile);
        std::vector<WaitsFor> waits_for;
        REQUIRE(Verify(plan, Depth::kPlan, &waits_for).ok());
        return Simulate(plan, waits_for, *CostsOn(scaled(factor), plan))->makespan;
      };
      for (const auto& [end, change] :
           {std::pair(1.0 / 16, &dependence.lower), {16.0, &dependence.higher}}) {
        TuneOptions there = options;
        there.machine = scaled(end);
        const double fastest = Tune(there)->best.front().seconds;
        CHECK((seconds(pick, end) > fastest * (1 + ModelError(options))) == change->has_value());
        if (!*change) continue;
        ++changes;
        const double factor = (*change)->factor, least = std::min(1.0, end);
        CHECK((factor < 1) == (end < 1));
        CHECK((factor >= least && factor <= std::max(1.0, end)));
        const double before = seconds(pick, factor),
                     after = seconds((*change)->pick.compile, factor);
        CHECK(before > after * (1 + ModelError(options)));
        CHECK((*change)->saves == Approx(1 - after / before));
      }
    }
  }
  CHECK(changes > 0);
}

TEST_CASE("a layout that is given is compared, and no faster than the fastest") {
  TuneOptions options = Space("llama", 4, 8, 1e9);
  options.beside = {1, 1, 1, 1};
  const auto tuned = Tune(options);
  REQUIRE(tuned.ok());
  REQUIRE(tuned->beside);
  CHECK(tuned->beside->compile.job.layers_per_stage == options.beside);
  CHECK(tuned->beside->seconds >= tuned->best.front().seconds);
}

TEST_CASE("what is given is kept") {
  TuneOptions options = Space("gpt2", 4, 8, 1e9);
  options.scheme = "interleaved";
  options.pp = 2;
  options.tp = 2;
  options.micro_batch_size = 2;
  options.zero = 0;
  options.stages_per_device = 2;
  const auto tuned = Tune(options);
  REQUIRE(tuned.ok());
  REQUIRE(!tuned->best.empty());
  for (const auto* list : {&tuned->best, &tuned->rest, &tuned->large})
    for (const Candidate& candidate : *list) {
      CHECK(candidate.compile.scheme == "interleaved");
      CHECK(candidate.compile.shape.devices == 2);
      CHECK(candidate.compile.job.tp == 2);
      CHECK(candidate.compile.job.micro_batch_size == 2);
      CHECK(candidate.compile.replicas == 1);
      CHECK(candidate.compile.zero == 0);
      CHECK(candidate.compile.shape.stages_per_device == 2);
    }
  CHECK(tuned->plan->scheme == "interleaved");
}

TEST_CASE("a batch that does not divide and a memory that holds nothing are errors") {
  const auto message = [](const TuneOptions& options) { return Tune(options).status().message(); };
  CHECK(message(Space("gpt2", 4, 8, 100)).find("--device-memory: ") == 0);
  TuneOptions odd = Space("gpt2", 4, 8, 1e9);
  odd.pp = 3;
  CHECK(message(odd) == "--pp: 3 with --devices 4, tp 1 or 2 and 4 layers (1, 2, 4)");
  odd.pp = 4;
  odd.tp = 2;
  CHECK(message(odd) == "--pp: 4 with --devices 4, tp 2 and 4 layers (1, 2)");
}

// Whatever does not divide: the error is the first option's, and what it names is legal.
TEST_CASE("what does not divide is named, with what would") {
  for (const int devices : {2, 3, 6})
    for (const int pp : {0, 2, 3})
      for (const int tp : {0, 2})
        for (const int batch : {1, 6, 7})
          for (const int size : {0, 4}) {
            TuneOptions options = Space("gpt2", devices, batch, 1e9);
            options.pp = pp;
            options.tp = tp;
            options.micro_batch_size = size;
            options.scheme = "gpipe";
            options.shown = 1;
            std::string text = Tune(options).status().message();
            // Each error is mended by the last value that it names, until none is left.
            int errors = 0;
            for (; !text.empty() && errors < 4; ++errors) {
              INFO(devices << " pp " << pp << " tp " << tp << " batch " << batch << " size " << size
                           << ": " << text);
              const std::string option = text.substr(0, text.find(':'));
              const std::string right = text.substr(text.find_last_of(" (") + 1);
              const int value = std::stoi(right);
              if (option == "--pp")
                options.pp = value;
              else if (option == "--tp")
                options.tp = value;
              else if (option == "--global-batch-size")
                options.batch = value;
              else if (option == "--micro-batch-size")
                options.micro_batch_size = value;
              else
                FAIL("an error of another option");
              text = Tune(options).status().message();
            }
            CHECK(text == "");
          }
}

}  // namespace
}  // namespace pp
