#include "compiler/tune/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compiler/machine/costs.h"
#include "compiler/passes/schedule.h"
#include "compiler/play/ideal.h"
#include "compiler/tune/bounds.h"
#include "compiler/tune/dependence.h"
#include "compiler/tune/exact.h"
#include "compiler/tune/node.h"
#include "compiler/tune/pick.h"
#include "compiler/tune/space.h"
#include "schema/proof/verify.h"
#include "schema/routines.h"
#include "schema/semantics/placement.h"

namespace pp {
namespace {

// Mario's passes try many orders of a plan: of more cells than this, only all or nothing is
// recomputed.
constexpr int64_t kMostMarioCells = 4096;
// A plan of more takes longer to compile than anyone wants to wait for.
constexpr int64_t kMostCells = int64_t{1} << 22;
// Of plans that could be the fastest, if they fitted, so many are fitted, if they are not larger.
constexpr size_t kMostFinalists = 2;
constexpr int64_t kMostFittedCells = 1 << 10;
// Of plans that may be as fast, but for the error, and are simpler, so many go to the next level.
constexpr int kMostSimpler = 16;

class Tuner {
 public:
  Tuner(const TuneOptions& options, Shared* shared)
      : options_(options),
        shared_(*shared),
        sketches_(shared->sketches),
        jobs_(options, prices_, &shared->balances) {
    prices_.profiles = options.profiles;
    prices_.layouts = shared->layouts;
    if (options.profiles.empty()) prices_.machine = options.machine;
  }

  // The fastest candidate that needs no fit-memory, alone; nothing if none takes less than `limit`.
  std::optional<Candidate> Fastest(double limit) {
    Enumerate();
    while (!open_.empty() && open_.top().seconds < limit) {
      Node next = Next();
      if (next.level == Level::kPlan) {
        Played again;
        Plan(next, &again);  // for its parts
        return CandidateOf(next);
      }
      GoOn(next);
    }
    return std::nullopt;
  }

  Result<Tuned> Run() {
    const auto begin = std::chrono::steady_clock::now();
    PP_RETURN_IF_ERROR(CheckLayouts(options_));
    Doing("candidates");
    Enumerate();
    while (!open_.empty() && best_.size() < options_.shown) {
      const Node next = Next();
      if (next.level == Level::kPlan) {
        best_.push_back(next);
      } else {
        GoOn(next);
      }
    }
    FitFinalists();
    PP_RETURN_IF_ERROR(CheckFound());
    FindSimplest();
    Hand();
    PP_RETURN_IF_ERROR(CompilePick());
    if (!options_.beside.empty()) {
      Doing("their layout");
      TuneOptions theirs = options_;
      theirs.cuts = options_.beside;
      Shared shared(theirs);
      tuned_.beside = Tuner(theirs, &shared).Fastest(HUGE_VAL);
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    tuned_.seconds = taken.count();
    return std::move(tuned_);
  }

 private:
  struct Later {
    bool operator()(const Node& a, const Node& b) const {
      return a.seconds > b.seconds || (a.seconds == b.seconds && a.level < b.level);
    }
  };
  static bool Sooner(const Node& a, const Node& b) { return a.seconds < b.seconds; }
  void Refuse(const Status& status) { refused_ = refused_.ok() ? status : refused_; }

  Node Next() {
    const Node next = open_.top();
    return open_.pop(), next;
  }

  void Doing(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }

  CompileOptions CompileOf(const Node& node) const {
    return pp::CompileOf(options_, prices_, jobs_[node.job], node);
  }
  Candidate CandidateOf(const Node& node) const {
    CompileOptions compile = CompileOf(node);
    compile.prices.layouts = nullptr;  // of this search
    return pp::CandidateOf(std::move(compile), node);
  }

  void Enumerate() {
    std::map<std::pair<int, int>, std::vector<bool>> shares_of;  // tp and micro-batch size
    for (const int tp : LegalPeers(options_, options_.tp))
      for (const int pp : Divisors(options_.devices / tp, options_.pp)) {
        const int dp = options_.devices / tp / pp;
        if (pp > MostStages(options_.job.model) || options_.batch % dp != 0) continue;
        if (options_.dp > 0 && dp != options_.dp) continue;
        for (const int size : Divisors(options_.batch / dp, options_.micro_batch_size)) {
          const auto [shares_to_try, is_new] = shares_of.try_emplace({tp, size});
          Job job = options_.job;
          job.tp = tp;
          job.micro_batch_size = size;
          if (is_new) shares_to_try->second = SequenceParallelToTry(options_, job);
          for (const bool shares : shares_to_try->second)
            AddSchemes({.devices = pp,
                        .microbatches = options_.batch / dp / size,
                        .replicas = dp,
                        .job = jobs_.Of(tp, size, shares)});
        }
      }
  }

  Result<CostModel> CostsOf(const Program& program) { return CostsOn(prices_, program); }

  void AddSchemes(const Node& base) {
    Bounds known;
    for (const auto& [scheme, stages] : sketches_.SchemesOn(base.devices, base.microbatches)) {
      Node node = base;
      node.scheme = scheme;
      node.stages_per_device = stages;
      Add(node, std::nullopt, &known);
    }
  }

  // A sketch of a candidate's schedule, with its job; null if it has none.
  Program* ModelOf(const Node& node) {
    Sketches::Sketch& sketch = sketches_.Of(*node.scheme, node.shape());
    if (!sketch.program.ok()) return nullptr;
    Program& program = *sketch.program;
    program.replicas = node.replicas;
    program.zero = node.variant.zero;
    program.rank_order = node.variant.rank_order;
    const Status status = jobs_.Put(node.job, *node.scheme, &program);
    if (!status.ok()) Refuse(status);
    return status.ok() ? &program : nullptr;
  }

  // Of candidates of the same sizes, by what bounds see of their schedules.
  using Bounds = std::map<std::tuple<StageMap, int, uint64_t>, Node>;

  // `decided`: of its variants this one alone. `known`: what has been bounded.
  void Add(Node node, std::optional<Variant> decided, Bounds* known) {
    const Scheme& scheme = *node.scheme;
    const int all = node.microbatches;
    if (options_.scheme.empty() && sketches_.AreOverlapping(scheme)) return;
    Sketches::Sketch& sketch = sketches_.Of(scheme, node.shape());
    if (!sketch.program.ok()) {
      // Of all schemes one is legal; one that was asked for says why it is not.
      if (!options_.scheme.empty())
        Refuse(sketch.program.status().In(fmt::format(
            "--scheme: {} with pp {} and {} micro-batches", scheme.name, node.devices, all)));
      return;
    }
    const int stages = sketch.program->stages;
    const char* passes = node.way == Way::kNone ? "" : "mario";
    if (*passes && !CheckWholeBackwards(*sketch.program, passes).ok()) return;
    if (node.way == Way::kMario && int64_t{stages} * all > kMostMarioCells) return;
    const std::tuple key(scheme.map, stages, sketch.kinds);
    const auto same = known != nullptr ? known->find(key) : Bounds::iterator();
    if (known != nullptr && same != known->end()) {
      const Node& other = same->second;
      node.variant = other.variant;
      node.open = other.open;
      node.seconds = other.seconds;
      node.bytes = other.bytes;
      node.parts = other.parts;
    } else {
      Program* program = ModelOf(node);
      if (program == nullptr) return;
      const std::vector<Variant> variants =
          decided ? std::vector{*decided} : VariantsToTry(options_, *program);
      node.open = variants.size() > 1;
      if (!Bound(*program, variants.front(), &node)) return;
      if (known != nullptr) known->emplace(key, node);
    }
    if (!Fits(node, "weights, gradients and optimizer")) return;
    if (int64_t{stages} * all > kMostCells) {
      node.fits = false;
      node.lacks = "more micro-batches than can be compiled";
      large_.push_back(node);
    } else {
      open_.push(node);
    }
  }

  // By its work, for what it is; an open one takes at least as long as with messages and reductions
  // that take no time, and an optimizer's step that is spread. False: it is refused.
  bool Bound(Program& program, Variant variant, Node* node) {
    node->variant = variant;
    program.zero = variant.zero;
    program.rank_order = variant.rank_order;
    auto costs = CostsOf(program);
    if (!costs.ok()) {
      Refuse(costs.status());
      return false;
    }
    const bool recomputes = node->way == Way::kAll;
    const int all = node->microbatches;
    node->parts = PartsByWork(program, *costs, all, recomputes);
    if (node->open)
      for (PerStage* times : {&costs->comm, &costs->latency, &costs->contention}) *times = {0};
    node->seconds = std::max(node->seconds, WorkBound(program, *costs, all, recomputes));
    const Parts& parts = node->parts;
    node->parts.bubble = std::max(0.0, node->seconds - parts.compute - parts.optimizer);
    node->bytes = std::max(node->bytes, MostLiveBytes(program.Head(), prices_.layouts.get()));
    return true;
  }

  // Its variants, each with a bound of its own.
  void Decide(Node node) {
    node.open = false;
    Program* program = ModelOf(node);
    if (program == nullptr) return;
    for (const Variant& variant : VariantsToTry(options_, *program)) {
      Node one = node;
      if (Bound(*program, variant, &one) && Fits(one, "weights, gradients and optimizer"))
        open_.push(one);
    }
  }

  bool Fits(Node& node, const char* takes) {
    node.fits = node.bytes <= options_.memory;
    if (node.fits) return true;
    node.lacks = takes;
    large_.push_back(node);
    return false;
  }

  // To the next level, or to a closer bound of the same one. A candidate that turns out to be
  // illegal is none.
  void GoOn(Node node) {
    Doing(NameOf(node));
    if (node.open) return Decide(node);
    const bool scheduled = node.level == Level::kSchedule;
    if (!(scheduled ? Plan(node) : Schedule(node))) return;
    if (Fits(node, scheduled ? "the whole plan" : "values that its schedule keeps")) {
      open_.push(node);
    } else {
      AddSmaller(node);
    }
  }

  std::string NameOf(const Node& node) const {
    return fmt::format("{} pp {} tp {} dp {}", node.scheme->name, node.devices, jobs_[node.job].tp,
                       node.replicas);
  }

  // Ways to train the same in less memory: what keeps less, then what recomputes.
  void AddSmaller(const Node& large) {
    if (large.way != Way::kNone) return;
    Node node = large;
    node.level = Level::kWork;
    node.counted = false;
    node.seconds = node.bytes = 0;
    for (const int job : jobs_.Smaller(large.job)) {
      node.job = job;
      Add(node, large.variant, nullptr);
    }
    if (!jobs_.KeepsLeast(large.job)) return;
    for (const Way way : {Way::kAll, Way::kMario}) {
      if (way == Way::kMario && !options_.mario) continue;
      node.way = way;
      Add(node, large.variant, nullptr);
    }
  }

  // Its whole schedule, with its job.
  Result<Program> Build(const Node& node) {
    Program* model = ModelOf(node);
    if (model == nullptr) return Status::Invalid("no schedule");
    auto program = BuildSchedule(std::string(node.scheme->name), node.shape());
    if (!program.ok()) return program;
    CopyAttributes(CompileOf(node), &*program);
    program->job = model->job;
    return program;
  }

  // Whether a candidate's lists, gone through one by one, keep what a device holds; most do not.
  // They are not asked where that is not the whole answer. Counts the bytes. False, without too
  // many bytes: the candidate is illegal.
  bool ListsFit(Node& node) {
    if (node.scheme->finish != nullptr || node.way != Way::kNone) return true;
    Program* model = ModelOf(node);
    if (model == nullptr) return false;
    const Job& job = *model->job;
    const auto [known, is_new] = shared_.bytes_by_lists.try_emplace(
        {node.scheme->name, node.devices, node.stages_per_device, node.microbatches, node.replicas,
         node.variant.zero, job.tp, job.micro_batch_size, job.sequence_parallel, job.keep,
         job.layers_per_stage});
    double& bytes = known->second;
    if (is_new) {
      const LiveBytes live(*model, prices_.layouts.get());
      const Status status = VisitLists(*node.scheme, node.shape(),
                                       [&](int device, const std::vector<Instruction>& list) {
                                         bytes = std::max(bytes, live.Of(device, list));
                                       });
      if (!status.ok()) bytes = -1;
    }
    if (bytes < 0) return false;
    node.bytes = std::max(node.bytes, bytes);
    return node.bytes <= options_.memory;
  }

  // What Mario's passes recompute follows from the order of the lists alone, before forwards move:
  // that takes far longer, and most candidates recompute too much to be worth it.
  bool Schedule(Node& node) {
    if (!ListsFit(node)) return node.bytes > options_.memory;
    auto program = Build(node);
    if (!program.ok()) return false;
    const auto costs = CostsOf(*program);
    if (!costs.ok()) return false;
    PassContext context{.costs = *costs};
    context.costs.reduce = {0};  // the lists do not have them yet
    const bool mario = node.way == Way::kMario;
    if (node.way == Way::kAll && !ApplyCheckpoint(*program, context).ok()) return false;
    for (const Pass& pass : MarioPasses()) {
      if (!mario || (pass.run == PreposeForward && !node.counted)) continue;
      if (!pass.run(*program, context).ok()) return false;
    }
    node.bytes = std::max(node.bytes, MostLiveBytes(*program, prices_.layouts.get()));
    if (mario && !std::exchange(node.counted, true)) {
      node.seconds =
          std::max(node.seconds, WorkBound(*program, *costs, program->microbatches, false));
      return true;
    }
    node.level = Level::kSchedule;
    if (node.bytes > options_.memory) return true;
    const auto spans =
        IdealTimeline(*program, FindMessages(*program), Durations(context.costs, *program));
    if (!spans.ok()) return false;
    node.seconds = std::max(node.seconds, ScheduleBound(*program, *costs, *spans));
    return true;
  }

  // To the exact level, unless it does not fit; `kept`: the plan, and its parts. False: it is
  // illegal.
  bool Plan(Node& node, Played* kept = nullptr) {
    const auto exact = ExactOf(CompileOf(node), options_.memory, kept);
    if (!exact) return false;
    node.bytes = exact->bytes;
    if (node.bytes > options_.memory) return true;
    node.seconds = exact->seconds;
    node.bubble = exact->bubble;
    if (kept != nullptr) node.parts = exact->parts;
    node.level = Level::kPlan;
    return true;
  }

  // Of those that could be faster by more than the error, if they fitted, a few are fitted: what at
  // least has to be recomputed is counted in their bounds.
  void FitFinalists() {
    std::vector<Node> finalists;
    for (const Node& large : large_) {
      const int64_t cells =
          int64_t{std::max(1, large.stages_per_device)} * large.devices * large.microbatches;
      if (large.way != Way::kNone || large.level == Level::kWork || !jobs_.KeepsLeast(large.job) ||
          cells > kMostFittedCells || large.seconds >= Least(best_))
        continue;
      Node node = large;
      node.seconds += LeastRecomputed(large);
      if (node.seconds * (1 + ModelError(options_)) < Least(best_)) finalists.push_back(node);
    }
    std::stable_sort(finalists.begin(), finalists.end(), Sooner);
    for (size_t i = 0; i < finalists.size() && finalists[i].seconds < Least(best_); ++i) {
      if (i >= kMostFinalists) {
        ++tuned_.unfitted;
        continue;
      }
      Node& node = finalists[i];
      node.way = Way::kFit;
      node.fits = true;
      Doing(NameOf(node) + ", fit-memory");
      if (Plan(node) && node.bytes <= options_.memory) Insert(node);
    }
  }

  static double Least(const std::vector<Node>& best) {
    return best.empty() ? HUGE_VAL : best.front().seconds;
  }

  double LeastRecomputed(const Node& node) {
    Program* model = ModelOf(node);
    if (model == nullptr) return HUGE_VAL;
    const auto costs = CostsOf(*model);
    const double too_many = node.bytes - options_.memory;
    return costs.ok() ? too_many * LeastToFree(*model, *costs, prices_.layouts.get()) : HUGE_VAL;
  }

  // Among the exact ones. Returns its place.
  size_t Insert(const Node& node) {
    const auto at = std::upper_bound(best_.begin(), best_.end(), node, Sooner);
    return static_cast<size_t>(best_.insert(at, node) - best_.begin());
  }

  // The simplest that is no slower than the fastest, but for the model's error. The simplest of
  // those whose bounds allow it goes on until its time is exact, or too long.
  void FindSimplest() {
    const auto limit = [&] { return best_.front().seconds * (1 + ModelError(options_)); };
    const auto complexity = [&](const Node& node) { return ComplexityOf(CandidateOf(node)); };
    Node pick = best_.front();
    const auto simpler_than_pick = [&](const Node& node) {
      return node.seconds <= limit() && complexity(node) < complexity(pick);
    };
    for (const Node& other : best_)
      if (simpler_than_pick(other)) pick = other;
    std::multimap<std::pair<Complexity, double>, Node> simpler;
    const auto take = [&] {
      while (!open_.empty()) {
        const Node next = Next();
        if (next.level != Level::kPlan && next.seconds < best_.front().seconds) {
          GoOn(next);  // what does not fit has led to it
        } else if (next.seconds < best_.front().seconds) {
          Insert(next);
          if (pick.seconds > limit()) pick = next;
        } else if (simpler_than_pick(next)) {
          simpler.emplace(std::pair(complexity(next), next.seconds), next);
        } else {
          rest_.push_back(next);
        }
      }
    };
    take();
    for (int tried = 0; !simpler.empty() && tried < kMostSimpler; ++tried) {
      const Node next = simpler.extract(simpler.begin()).mapped();
      if (next.level == Level::kPlan) {
        pick = next;
        Insert(next);
        break;
      }
      GoOn(next);
      take();
    }
    for (const auto& [key, node] : simpler) rest_.push_back(node);
    // The pick, and of the others as many as are shown.
    for (size_t i = best_.size(); i-- > options_.shown;)
      if (complexity(best_[i]) != complexity(pick) || best_[i].seconds != pick.seconds) {
        rest_.push_back(best_[i]);
        best_.erase(best_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    const auto found = std::find_if(best_.begin(), best_.end(), [&](const Node& node) {
      return complexity(node) == complexity(pick) && node.seconds == pick.seconds;
    });
    tuned_.pick = static_cast<size_t>(found - best_.begin());
    std::stable_sort(rest_.begin(), rest_.end(), Sooner);
  }

  // What is shown is compiled once more, for its parts: few of those that are compiled are shown.
  void Hand() {
    Played again;
    for (Node& node : best_) Plan(node, &again);
    for (const auto& [from, to] :
         {std::pair(&best_, &tuned_.best), {&rest_, &tuned_.rest}, {&large_, &tuned_.large}})
      for (const Node& node : *from) to->push_back(CandidateOf(node));
  }

  // The plan that was picked, with its evaluation, proved, and what it depends on.
  Status CompilePick() {
    CompileOptions compile = tuned_.best[tuned_.pick].compile;
    compile.proves = false;
    auto program = Compile(compile);
    PP_RETURN_IF_ERROR(program.status());
    std::vector<WaitsFor> waits_for;
    PP_RETURN_IF_ERROR(Verify(*program, Depth::kPlan, &waits_for));
    tuned_.model_operations = ModelOperations(*program);
    tuned_.plan = std::move(*program);
    if (!options_.profiles.empty()) return {};
    Played pick{*tuned_.plan, std::move(waits_for)};
    DropRoutines(&pick.plan);
    Doing("what it depends on");
    auto dependences = DependencesOf(options_, pick, [this] {
      return [shared = std::make_shared<Shared>(shared_.Copy())](const TuneOptions& there,
                                                                 double limit) {
        return Tuner(there, shared.get()).Fastest(limit);
      };
    });
    PP_RETURN_IF_ERROR(dependences.status());
    tuned_.dependences = std::move(*dependences);
    return {};
  }

  Status CheckFound() const {
    if (!best_.empty()) return {};
    if (large_.empty() && !refused_.ok()) return refused_;
    if (large_.empty())
      return Status::Invalid(
          "--devices: no scheme, pipeline and micro-batch size is legal for them, the model and "
          "the batch");
    const Node& least =
        *std::min_element(large_.begin(), large_.end(),
                          [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    if (least.bytes <= options_.memory)
      return Status::Invalid(
          fmt::format("--global-batch-size: {} ({})", options_.batch, least.lacks));
    return Status::Invalid(fmt::format(
        "--device-memory: {:.4g} GiB hold no plan ({} needs {:.4g} GiB at least: {})",
        options_.memory / (1 << 30), NameOf(least), least.bytes / (1 << 30), least.lacks));
  }

  const TuneOptions& options_;
  PriceSource prices_;
  Shared& shared_;
  Sketches& sketches_;
  Jobs jobs_;
  std::priority_queue<Node, std::vector<Node>, Later> open_;
  std::vector<Node> best_, rest_, large_;
  Tuned tuned_;
  Status refused_;  // the first candidate that was legal but for its job or costs
};

}  // namespace

Result<Tuned> Tune(const TuneOptions& options) {
  Shared shared(options);
  return Tuner(options, &shared).Run();
}

}  // namespace pp
