#include "compiler/tune/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/balance.h"
#include "compiler/machine/costs.h"
#include "compiler/passes/schedule.h"
#include "compiler/play/ideal.h"
#include "compiler/simulate.h"
#include "compiler/tune/bounds.h"
#include "compiler/tune/dependence.h"
#include "compiler/tune/pick.h"
#include "compiler/tune/replay.h"
#include "compiler/tune/space.h"
#include "schema/model/families.h"
#include "schema/model/layout.h"
#include "schema/model/operators.h"
#include "schema/proof/verify.h"
#include "schema/semantics/placement.h"
#include "schema/semantics/sections.h"

namespace pp {
namespace {

// Mario's passes try many orders of a plan: of more cells than this, only all or nothing is
// recomputed.
constexpr int64_t kMostMarioCells = 4096;

// A plan of more takes longer to compile than anyone wants to wait for.
constexpr int64_t kMostCells = int64_t{1} << 22;
// Of plans that could be the fastest, if they fitted, so many are fitted, if they are not larger.
constexpr size_t kMostFinalists = 8;
constexpr int64_t kMostFittedCells = 1 << 14;
// Of plans that may be as fast, but for the error, and are simpler, so many go to the next level.
constexpr int kMostSimpler = 64;
constexpr int kMostCompared = 32;  // micro-batches of schemes on one device

bool Overlaps(const Program& program) { return HasSections(program) || program.MakesVersions(); }

// A schedule that trains the same as others: whose steps do not overlap.
Result<Program> BuildSynchronous(const std::string& scheme, const Shape& shape) {
  auto program = BuildSchedule(scheme, shape);
  if (program.ok() && Overlaps(*program)) return Status::Invalid("steps overlap");
  return program;
}

class Tuner {
 public:
  explicit Tuner(const TuneOptions& options) : options_(options) {}

  // The fastest candidate alone; nothing if none is legal or fits.
  std::optional<Candidate> Fastest() {
    Enumerate();
    while (!open_.empty()) {
      Candidate next = Next();
      if (next.level == Level::kPlan) return next;
      GoOn(std::move(next));
    }
    return std::nullopt;
  }

  Result<Tuned> Run() {
    const auto begin = std::chrono::steady_clock::now();
    if (options_.tp > 0) {
      Job job = options_.job;
      job.tp = options_.tp;
      job.layers_per_stage = {job.model.layers};
      PP_RETURN_IF_ERROR(CheckJob(job));
    }
    PP_RETURN_IF_ERROR(CheckLayouts(options_));
    Doing("candidates");
    Enumerate();
    while (!open_.empty() && tuned_.best.size() < options_.shown) {
      Candidate next = Next();
      if (next.level == Level::kPlan) {
        tuned_.best.push_back(std::move(next));
      } else {
        GoOn(std::move(next));
      }
    }
    FitFinalists();
    PP_RETURN_IF_ERROR(CheckFound());
    FindSimplest();
    for (; !open_.empty(); open_.pop()) tuned_.rest.push_back(open_.top());
    PP_RETURN_IF_ERROR(CompileBest());
    if (!options_.beside.empty()) {
      Doing("their layout");
      TuneOptions theirs = options_;
      theirs.cuts = options_.beside;
      tuned_.beside = FastestOn(theirs);
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    tuned_.seconds = taken.count();
    return std::move(tuned_);
  }

 private:
  struct Later {
    bool operator()(const Candidate& a, const Candidate& b) const {
      return a.seconds > b.seconds || (a.seconds == b.seconds && a.level < b.level);
    }
  };

  Candidate Next() {
    Candidate next = open_.top();
    open_.pop();
    return next;
  }

  // Of those that could be the fastest, if they fitted, a few are fitted: their time without
  // recomputation is the bound by which they are chosen.
  void FitFinalists() {
    const double limit = tuned_.best.empty() ? HUGE_VAL : tuned_.best.front().seconds;
    std::vector<Candidate> finalists;
    for (const Candidate& large : tuned_.large) {
      const CompileOptions& c = large.compile;
      const int64_t cells =
          int64_t{std::max(1, c.shape.stages_per_device)} * c.shape.devices * c.shape.microbatches;
      if (large.seconds < limit && c.passes.empty() && large.level != Level::kWork &&
          c.job.keep == KeepsToTry(options_, c.job).back() && cells <= kMostFittedCells)
        finalists.push_back(large);
    }
    std::stable_sort(finalists.begin(), finalists.end(),
                     [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    tuned_.unfitted = finalists.size() - std::min(finalists.size(), kMostFinalists);
    finalists.resize(finalists.size() - tuned_.unfitted);
    for (Candidate& finalist : finalists) {
      if (finalist.seconds >= (tuned_.best.empty() ? HUGE_VAL : tuned_.best.front().seconds)) break;
      Doing(NameOf(finalist) + ", fit-memory");
      finalist.compile.fit.limit = {MemoryLimit::kBytes, {options_.memory}};
      finalist.compile.fit.quick = options_.search_seconds == 0;
      finalist.compile.fit.search_seconds = options_.search_seconds;
      finalist.fits = true;
      finalist.lacks.clear();
      if (Plan(finalist) && finalist.bytes <= options_.memory) Insert(std::move(finalist));
    }
  }

  // Among the exact ones. Returns its place.
  size_t Insert(Candidate candidate) {
    const auto later = [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; };
    auto& best = tuned_.best;
    const auto at = std::upper_bound(best.begin(), best.end(), candidate, later);
    return static_cast<size_t>(best.insert(at, std::move(candidate)) - best.begin());
  }

  // The simplest that is no slower than the fastest, but for the model's error. The simplest of
  // those whose bounds allow it goes on until its time is exact, or too long.
  void FindSimplest() {
    auto& best = tuned_.best;
    const double limit = best.front().seconds * (1 + ModelError(options_));
    const auto within = [&](const Candidate& c) { return c.seconds <= limit; };
    for (size_t i = 1; i < best.size(); ++i)
      if (within(best[i]) && ComplexityOf(best[i]) < ComplexityOf(best[tuned_.pick]))
        tuned_.pick = i;
    std::multimap<std::pair<Complexity, double>, Candidate> simpler;
    const auto take = [&] {
      while (!open_.empty()) {
        Candidate next = Next();
        if (within(next) && ComplexityOf(next) < ComplexityOf(best[tuned_.pick])) {
          const std::pair key(ComplexityOf(next), next.seconds);
          simpler.emplace(key, std::move(next));
        } else {
          tuned_.rest.push_back(std::move(next));
        }
      }
    };
    take();
    for (int tried = 0; !simpler.empty() && tried < kMostSimpler; ++tried) {
      Candidate next = std::move(simpler.extract(simpler.begin()).mapped());
      if (next.level == Level::kPlan) {
        tuned_.pick = Insert(std::move(next));
        break;
      }
      GoOn(std::move(next));
      take();
    }
    for (auto& [key, candidate] : simpler) tuned_.rest.push_back(std::move(candidate));
    std::sort(tuned_.rest.begin(), tuned_.rest.end(),
              [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  }

  void Doing(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }

  void Enumerate() {
    for (const int tp : LegalPeers(options_, options_.tp)) {
      for (const int pp : Divisors(options_.devices / tp, options_.pp)) {
        const int dp = options_.devices / tp / pp;
        if (options_.batch % dp != 0 || (options_.dp > 0 && dp != options_.dp)) continue;
        for (const int size : Divisors(options_.batch / dp, options_.micro_batch_size)) {
          CompileOptions compile;
          compile.shape = {
              .devices = pp, .microbatches = options_.batch / dp / size, .stages_per_device = 0};
          compile.replicas = dp;
          compile.prices.profiles = options_.profiles;
          if (options_.profiles.empty()) compile.prices.machine = options_.machine;
          compile.job = options_.job;
          compile.job.tp = tp;
          compile.job.micro_batch_size = size;
          compile.balance_layers = options_.cuts.empty();
          compile.job.layers_per_stage = options_.cuts;
          for (const bool shares : SequenceParallelToTry(options_, compile.job)) {
            compile.job.sequence_parallel = shares;
            compile.job.keep = KeepsToTry(options_, compile.job).front();
            AddSchemes(compile);
          }
        }
      }
    }
  }

  Result<CostModel> CostsOf(const Program& program) {
    return options_.profiles.empty() ? CostsOn(options_.machine, program, &layouts_)
                                     : CostsOn(options_.profiles, program);
  }

  void AddSchemes(const CompileOptions& base) {
    alone_.clear();
    for (const Scheme& scheme : Schemes()) {
      if (!options_.scheme.empty() && scheme.name != options_.scheme) continue;
      if (overlapping_.contains(scheme.name)) continue;
      CompileOptions compile = base;
      compile.scheme = scheme.name;
      for (const int stages : StagesToTry(options_, scheme, base.shape.devices)) {
        compile.shape.stages_per_device = stages;
        AddUnlessKnown(compile);
      }
    }
  }

  // On one device many schemes are the same one. Several stages, whose gradients are reduced one
  // by one, and split backwards make others. No order that there is repeats after more
  // micro-batches than are compared.
  void AddUnlessKnown(const CompileOptions& compile) {
    if (compile.shape.devices == 1 && options_.scheme.empty()) {
      Shape shape = compile.shape;
      shape.microbatches = std::min(shape.microbatches, kMostCompared);
      const Result<Program> built = BuildSynchronous(compile.scheme, shape);
      if (!built.ok()) return;
      const auto& body = built->lists[0].body;
      const bool whole = std::none_of(body.begin(), body.end(), [](const Instruction& i) {
        return i.op == Op::kBackwardInput;
      });
      if (built->stages == 1 && whole && compile.scheme != "1f1b") return;
      const std::pair schedule(built->stages, body);
      if (std::find(alone_.begin(), alone_.end(), schedule) != alone_.end()) return;
      alone_.push_back(schedule);
    }
    Add(compile, std::nullopt);
  }

  // `decided`: of its variants this one alone.
  void Add(const CompileOptions& compile, std::optional<Variant> decided) {
    const int all = compile.shape.microbatches;
    const Result<Program>& sketch = SketchOf(compile.scheme, compile.shape);
    if (!sketch.ok()) {
      // Of all schemes one is legal; one that was asked for says why it is not.
      if (!options_.scheme.empty())
        Refuse(sketch.status().In(fmt::format("--scheme: {} with pp {} and {} micro-batches",
                                              compile.scheme, compile.shape.devices, all)));
      return;
    }
    if (!compile.passes.empty() && !CheckWholeBackwards(*sketch, compile.passes).ok()) return;
    auto program = WithJob(sketch, compile);
    if (!program.ok()) return Refuse(program.status());
    if (compile.passes == "mario" && int64_t{program->stages} * all > kMostMarioCells) return;
    const std::vector<Variant> variants =
        decided ? std::vector{*decided} : VariantsToTry(options_, *program);
    Candidate candidate{.compile = compile, .open = variants.size() > 1};
    const bool unfit = !Bound(*program, variants.front(), &candidate);
    if (unfit || !Fits(candidate, "weights, gradients and optimizer")) return;
    if (int64_t{program->stages} * all > kMostCells) {
      candidate.fits = false;
      candidate.lacks = "more micro-batches than can be compiled";
      tuned_.large.push_back(std::move(candidate));
    } else {
      open_.push(std::move(candidate));
    }
  }

  // By its work, for what it is; an open one takes at least as long as with messages and reductions
  // that take no time, and an optimizer's step that is spread. False: it is refused.
  bool Bound(Program& program, Variant variant, Candidate* candidate) {
    candidate->compile.zero = program.zero = variant.zero;
    candidate->compile.rank_order = program.rank_order = variant.rank_order;
    auto costs = CostsOf(program);
    if (!costs.ok()) {
      Refuse(costs.status());
      return false;
    }
    const bool recomputes = candidate->compile.passes == "apply-checkpoint";
    const int all = candidate->compile.shape.microbatches;
    candidate->parts = PartsByWork(program, *costs, all, recomputes);
    if (candidate->open)
      for (PerStage* times : {&costs->comm, &costs->latency, &costs->contention}) *times = {0};
    candidate->seconds = std::max(candidate->seconds, WorkBound(program, *costs, all, recomputes));
    const Parts& parts = candidate->parts;
    candidate->parts.bubble = std::max(0.0, candidate->seconds - parts.compute - parts.optimizer);
    candidate->bytes = std::max(candidate->bytes, MostLiveBytes(program.Head(), &layouts_));
    return true;
  }

  // Its variants, each with a bound of its own.
  void Decide(Candidate candidate) {
    candidate.open = false;
    auto program =
        WithJob(SketchOf(candidate.compile.scheme, candidate.compile.shape), candidate.compile);
    if (!program.ok()) return;
    for (const Variant& variant : VariantsToTry(options_, *program)) {
      Candidate one = candidate;
      if (Bound(*program, variant, &one) && Fits(one, "weights, gradients and optimizer"))
        open_.push(std::move(one));
    }
  }

  // The schedule of a candidate, or a sketch of it, with its job.
  Result<Program> WithJob(Result<Program> program, const CompileOptions& compile) {
    if (!program.ok()) return program;
    CopyAttributes(compile, &*program);
    program->job = compile.job;
    const std::tuple sizes(compile.job.tp, compile.job.micro_batch_size,
                           compile.job.sequence_parallel, compile.job.keep);
    auto costs = layer_costs_.find(sizes);
    if (costs == layer_costs_.end())
      costs = layer_costs_.emplace(sizes, LayerCostsOf(compile.job, compile.prices)).first;
    PP_RETURN_IF_ERROR(costs->second.status());
    if (compile.balance_layers)
      program->job->layers_per_stage =
          BalanceLayers(*program, compile.job.model.layers, *costs->second);
    PP_RETURN_IF_ERROR(CheckJob(*program->job));
    return program;
  }

  // Of one list one instruction of each kind, alone and overlapping: nothing else is asked of a
  // sketch's lists.
  static void Shrink(Program* sketch) {
    sketch->lists.resize(1);
    std::set<std::pair<Op, bool>> seen;
    std::vector<Instruction> kinds;
    for (const Instruction& i : sketch->lists[0].body)
      if (seen.insert({i.op, i.overlap}).second) kinds.push_back(i);
    sketch->lists[0].body = std::move(kinds);
  }

  // Its pipes, and what one list has, for as few micro-batches as show them. Most candidates share
  // theirs.
  const Result<Program>& SketchOf(const std::string& scheme, Shape shape) {
    const int all = shape.microbatches;
    const int few = std::min(2 * shape.devices, all);
    const std::tuple key(scheme, shape.devices, shape.stages_per_device, few);
    const auto found = sketches_.find(key);
    // A scheme may refuse so few of them.
    if (found != sketches_.end() && (found->second.ok() || few == all)) return found->second;
    Result<Program> program = Status::Invalid("");
    for (const int some : {few, all})
      if (!program.ok() && int64_t{some} * shape.devices <= kMostCells) {
        shape.microbatches = some;
        program = BuildSchedule(scheme, shape);
      }
    if (program.ok() && Overlaps(*program)) {  // whatever the size
      overlapping_.insert(scheme);
      program = Status::Invalid("its steps overlap, on older weights (one that trains as others)");
    }
    if (program.ok()) Shrink(&*program);
    return sketches_.insert_or_assign(key, std::move(program)).first->second;
  }

  void Refuse(const Status& status) {
    if (refused_.ok()) refused_ = status;
  }

  bool Fits(Candidate& candidate, const char* takes) {
    candidate.fits = candidate.bytes <= options_.memory;
    if (candidate.fits) return true;
    candidate.lacks = takes;
    tuned_.large.push_back(candidate);
    return false;
  }

  // To the next level, or to a closer bound of the same one. A candidate that turns out to be
  // illegal is none.
  void GoOn(Candidate candidate) {
    Doing(NameOf(candidate));
    if (candidate.open) return Decide(std::move(candidate));
    const bool scheduled = candidate.level == Level::kSchedule;
    if (!(scheduled ? Plan(candidate) : Schedule(candidate))) return;
    if (Fits(candidate, scheduled ? "the whole plan" : "values that its schedule keeps")) {
      open_.push(std::move(candidate));
    } else {
      AddSmaller(candidate.compile);
    }
  }

  static std::string NameOf(const Candidate& candidate) {
    const CompileOptions& c = candidate.compile;
    return fmt::format("{} pp {} tp {} dp {}", c.scheme, c.shape.devices, c.job.tp, c.replicas);
  }

  // Ways to train the same in less memory: what keeps less, then what recomputes.
  void AddSmaller(CompileOptions compile) {
    if (!compile.passes.empty()) return;
    const Variant variant{compile.zero, compile.rank_order};
    const auto keeps = KeepsToTry(options_, compile.job);
    const auto kept = std::find(keeps.begin(), keeps.end(), compile.job.keep);
    if (kept == keeps.begin()) {
      for (size_t i = 1; i < keeps.size(); ++i) {
        compile.job.keep = keeps[i];
        Add(compile, variant);
      }
    }
    if (kept + 1 != keeps.end()) return;
    for (const char* passes : {"apply-checkpoint", "mario"}) {
      compile.passes = passes;
      Add(compile, variant);
    }
  }

  // Whether a candidate's lists, gone through one by one, keep what a device holds; most do not.
  // They are not asked where that is not the whole answer. Counts the bytes. False, without too
  // many bytes: the candidate is illegal.
  bool ListsFit(Candidate& candidate) {
    const CompileOptions& compile = candidate.compile;
    const Scheme& scheme =
        *std::find_if(Schemes().begin(), Schemes().end(),
                      [&](const Scheme& other) { return other.name == compile.scheme; });
    if (scheme.finish != nullptr || !compile.passes.empty()) return true;
    const auto sketch = WithJob(SketchOf(compile.scheme, compile.shape), compile);
    if (!sketch.ok()) return false;
    const LiveBytes live(*sketch, &layouts_);
    const Status status =
        VisitLists(scheme, compile.shape, [&](int device, const std::vector<Instruction>& list) {
          candidate.bytes = std::max(candidate.bytes, live.Of(device, list));
        });
    return status.ok() && candidate.bytes <= options_.memory;
  }

  // What Mario's passes recompute follows from the order of the lists alone, before forwards move:
  // that takes far longer, and most candidates recompute too much to be worth it.
  bool Schedule(Candidate& candidate) {
    if (!ListsFit(candidate)) return candidate.bytes > options_.memory;
    auto program = WithJob(BuildSchedule(candidate.compile.scheme, candidate.compile.shape),
                           candidate.compile);
    if (!program.ok()) return false;
    const auto costs = CostsOf(*program);
    if (!costs.ok()) return false;
    PassContext context{.costs = *costs};
    context.costs.reduce = {0};  // the lists do not have them yet
    const bool mario = candidate.compile.passes == "mario";
    for (const Pass& pass : Passes())
      if (pass.name == candidate.compile.passes && !pass.run(*program, context).ok()) return false;
    for (const Pass& pass : MarioPasses()) {
      if (!mario || (pass.run == PreposeForward && !candidate.counted)) continue;
      if (!pass.run(*program, context).ok()) return false;
    }
    candidate.bytes = std::max(candidate.bytes, MostLiveBytes(*program, &layouts_));
    if (mario && !std::exchange(candidate.counted, true)) {
      candidate.seconds =
          std::max(candidate.seconds, WorkBound(*program, *costs, program->microbatches, false));
      return true;
    }
    candidate.level = Level::kSchedule;
    if (candidate.bytes > options_.memory) return true;
    const auto spans =
        IdealTimeline(*program, FindMessages(*program), Durations(context.costs, *program));
    if (!spans.ok()) return false;
    candidate.seconds = std::max(candidate.seconds, ScheduleBound(*program, *costs, *spans));
    return true;
  }

  // What does not fit is compiled no further, and its time stays a bound. What fits is proved to
  // the end: the simulation shows the progress. No plan is kept: the best is compiled once more.
  bool Plan(Candidate& candidate) {
    CompileOptions compile = candidate.compile;
    compile.proves = false;
    compile.leaves = Form::kPlan;
    auto program = Compile(compile);
    if (!program.ok()) return false;
    candidate.bytes = ArenaOf(*program);
    if (candidate.bytes > options_.memory) return true;
    const auto costs = pp::CostsOf(*program);
    if (!costs.ok() || !AddEvaluation(*program, {.costs = *costs}).ok()) return false;
    candidate.bytes = ArenaOf(*program);
    if (candidate.bytes > options_.memory) return true;
    for (DeviceList& list : program->lists) list.evaluation = std::vector<Instruction>();
    std::vector<WaitsFor> waits_for;
    if (!VerifyLists(*program, Depth::kPlan, &waits_for).ok()) return false;
    const auto replay = Replay::Make(*program, std::exchange(waits_for, {}));
    const auto makespan = replay.ok() ? replay->Makespan(*costs) : Result<double>(replay.status());
    if (!makespan.ok()) return false;
    candidate.seconds = *makespan;
    const double busy = MeanBusyTime(*program, *costs, [](Op) { return true; });
    if (*makespan > 0) candidate.bubble = 1 - busy / *makespan;
    const auto parts = PartsOf(*program, *replay, *costs, *makespan);
    if (!parts.ok()) return false;
    candidate.parts = *parts;
    candidate.level = Level::kPlan;
    return true;
  }

  // Of what the makespan is longer by than without messages, and without reductions either, the
  // rest computes, updates weights or waits.
  static Result<Parts> PartsOf(const Program& program, const Replay& replay, CostModel costs,
                               double makespan) {
    Parts parts;
    parts.optimizer = MeanBusyTime(program, costs, [](Op op) { return op == Op::kStep; });
    costs = Scaled(std::move(costs), CostPart::kMessages, 0);
    const auto quiet = replay.Makespan(costs);
    PP_RETURN_IF_ERROR(quiet.status());
    costs = Scaled(std::move(costs), CostPart::kReductions, 0);
    const auto alone = replay.Makespan(costs);
    PP_RETURN_IF_ERROR(alone.status());
    parts.compute = MeanBusyTime(program, costs, [](Op op) { return op != Op::kStep; });
    parts.messages = makespan - *quiet;
    parts.reductions = *quiet - *alone;
    parts.bubble = *alone - parts.compute - parts.optimizer;
    return parts;
  }

  template <typename Counts>
  static double MeanBusyTime(const Program& program, const CostModel& costs, Counts counts) {
    const Durations durations(costs, program);
    double busy = 0;
    for (const DeviceList& list : program.lists) {
      std::vector<Instruction> some;
      std::copy_if(list.body.begin(), list.body.end(), std::back_inserter(some),
                   [&](const Instruction& i) { return counts(i.op); });
      busy += BusyTime(some, durations);
    }
    return busy / program.devices;
  }

  static double ArenaOf(const Program& program) {
    int64_t most = 0;
    for (const DeviceList& list : program.lists) most = std::max(most, list.arena_bytes);
    return static_cast<double>(most);
  }

  // The plan that was picked, with its evaluation, proved.
  Status CompileBest() {
    CompileOptions compile = tuned_.best[tuned_.pick].compile;
    compile.proves = false;
    auto program = Compile(compile);
    PP_RETURN_IF_ERROR(program.status());
    std::vector<WaitsFor> waits_for;
    PP_RETURN_IF_ERROR(Verify(*program, Depth::kPlan, &waits_for));
    if (options_.profiles.empty() && options_.depends) {
      Doing("what it depends on");
      auto dependences = DependencesOf(options_, *program, waits_for, tuned_.best.front().seconds);
      PP_RETURN_IF_ERROR(dependences.status());
      tuned_.dependences = std::move(*dependences);
    }
    tuned_.model_operations = OperationsOf(*program);
    tuned_.plan = std::move(*program);
    return {};
  }

  Status CheckFound() const {
    if (!tuned_.best.empty()) return {};
    if (tuned_.large.empty() && !refused_.ok()) return refused_;
    if (tuned_.large.empty())
      return Status::Invalid(
          "--devices: no scheme, pipeline and micro-batch size is legal for them, the model and "
          "the batch");
    const Candidate& least =
        *std::min_element(tuned_.large.begin(), tuned_.large.end(),
                          [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    if (least.bytes <= options_.memory)
      return Status::Invalid(
          fmt::format("--global-batch-size: {} ({})", options_.batch, least.lacks));
    return Status::Invalid(fmt::format(
        "--device-memory: {:.4g} GiB hold no plan ({} with pp {}, tp {}, dp {} needs {:.4g} GiB at "
        "least: {})",
        options_.memory / (1 << 30), least.compile.scheme, least.compile.shape.devices,
        least.compile.job.tp, least.compile.replicas, least.bytes / (1 << 30), least.lacks));
  }

  // Of a step: 6N + 12LCT for each token, but 4 for what is frozen, which has no weight gradient.
  static double OperationsOf(const Program& program) {
    const Job& job = *program.job;
    double operations = 0;  // per token
    for (int s = 0; s < program.stages; ++s)
      for (const StageOperator& placed : LayoutStage(job, s).operators) {
        const Operator& op = placed.op;
        if (op.kind == OperatorKind::kLinear)
          operations +=
              (op.parameters[0].trainable ? 6 : 4) * MultiplyAdds(op, job.sequence_length) +
              6 * AdapterMultiplyAdds(op);
        if (op.kind == OperatorKind::kAttention)
          operations += 12 * static_cast<double>(op.out) * job.sequence_length;
      }
    return operations * static_cast<double>(job.tokens()) * program.microbatches *
           program.replicas * job.tp;
  }

  const TuneOptions& options_;
  std::priority_queue<Candidate, std::vector<Candidate>, Later> open_;
  Tuned tuned_;
  Layouts layouts_;
  // By tp, micro-batch size, sequence parallelism and what is kept.
  std::map<std::tuple<int, int, bool, std::vector<OperatorKind>>, Result<LayerCosts>> layer_costs_;
  std::map<std::tuple<std::string, int, int, int>, Result<Program>> sketches_;
  std::set<std::string, std::less<>> overlapping_;               // schemes
  std::vector<std::pair<int, std::vector<Instruction>>> alone_;  // stages, and the list
  Status refused_;  // the first candidate that was legal but for its job or costs
};

}  // namespace

Result<Tuned> Tune(const TuneOptions& options) { return Tuner(options).Run(); }

std::optional<Candidate> FastestOn(const TuneOptions& options) { return Tuner(options).Fastest(); }

}  // namespace pp
