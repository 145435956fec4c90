#include "compiler/tune/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <queue>

#include "compiler/balance.h"
#include "compiler/machine/costs.h"
#include "compiler/play/ideal.h"
#include "compiler/simulate.h"
#include "schema/model/families.h"
#include "schema/model/work.h"
#include "schema/placement.h"
#include "schema/sections.h"
#include "schema/verify.h"

namespace pp {
namespace {

// Mario's passes time a plan over and over: of more cells than this, only all or nothing is
// recomputed.
constexpr int64_t kMostMarioCells = 1024;

// A plan of more takes longer to compile than anyone wants to wait for.
constexpr int64_t kMostCells = int64_t{1} << 22;

// All divisors, ascending, or the given one if it is one.
std::vector<int> Divisors(int of, int given) {
  if (given > 0) return of % given == 0 ? std::vector<int>{given} : std::vector<int>();
  std::vector<int> low, high;
  for (int64_t divisor = 1; divisor * divisor <= of; ++divisor) {
    if (of % divisor != 0) continue;
    low.push_back(static_cast<int>(divisor));
    if (divisor * divisor != of) high.push_back(static_cast<int>(of / divisor));
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

// The schedule of a candidate with its job, for fewer micro-batches if `few` is given.
Result<Program> ScheduleOf(const CompileOptions& compile, int few = 0) {
  Shape shape = compile.shape;
  if (few > 0) shape.microbatches = few;
  auto program = BuildSchedule(compile.scheme, shape);
  if (!program.ok()) return program.status();
  if (HasSections(*program) || program->MakesVersions())
    return Status::Invalid("steps overlap: not the same training");
  CopyAttributes(compile, &*program);
  program->job = compile.job;
  const auto costs = LayerCostsOf(*program->job, compile.prices);
  PP_RETURN_IF_ERROR(costs.status());
  program->job->layers_per_stage = BalanceLayers(*program, compile.job.model.layers, *costs);
  PP_RETURN_IF_ERROR(CheckJob(*program->job));
  return program;
}

// The most that a device holds all the time and that its lists, if there are any, keep alive; less
// than its arena.
double LiveBytes(const Program& program, Layouts* layouts) {
  std::vector<int64_t> state(program.devices), kept, full;
  for (int s = 0; s < program.stages; ++s) {
    const StageLayout& layout = layouts->Of(*program.job, s);
    const Job& job = *program.job;
    // What a forward read stays until its backward.
    const int64_t input =
        layout.targets_bytes +
        (layout.first ? layout.tokens_bytes
                      : job.stream_tokens() * job.model.hidden_size * BytesOf(job.dtype));
    kept.push_back(input + layout.kept_bytes);
    full.push_back(input + layout.kept_bytes + layout.stash_bytes);
    const int64_t rounded = job.backend == DeviceKind::kCuda ? layout.rounded_bytes : 0;
    const int64_t shards = program.zero > 0 ? program.Copies() : 1;
    for (const Pipe& pipe : program.pipes)
      state[pipe.device_of[s]] +=
          layout.weights_bytes + layout.wgrad_bytes + layout.optimizer_bytes / shards + rounded;
  }
  int64_t most = 0;
  for (int d = 0; d < program.devices; ++d) {
    int64_t level = state[d];
    most = std::max(most, level);
    if (program.lists.empty()) continue;
    for (const Instruction& i : program.lists[d].body) {
      if (i.op == Op::kForwardDrop) level += kept[i.stage];
      if (i.op == Op::kForward) level += full[i.stage];
      if (i.op == Op::kRecompute) level += full[i.stage] - kept[i.stage];
      most = std::max(most, level);
      if (i.op == Op::kBackward || i.op == Op::kBackwardWeight) level -= full[i.stage];
    }
  }
  return static_cast<double>(most);
}

// At least: a device's work for all micro-batches, the way of the first one to it, and the way back
// from its last backward; weight halves may run during that.
double WorkBound(const Program& program, const CostModel& costs, int microbatches, bool again) {
  const std::vector<double> shares = program.Shares();
  const auto time = [&](const PerStage& values, int s) { return At(values, s) * shares[s]; };
  const auto& some = program.lists.front().body;
  const bool split = std::any_of(some.begin(), some.end(),
                                 [](const Instruction& i) { return i.op == Op::kBackwardInput; });
  std::vector<double> share_of_pipe(program.pipes.size());
  for (const int32_t pipe : program.pipe_of) share_of_pipe[pipe] += 1.0 / program.microbatches;
  struct Device {
    double head = HUGE_VAL, tail = HUGE_VAL, work = 0, weights = 0;
  };
  std::vector<Device> devices(program.devices);
  double step = HUGE_VAL;
  for (size_t p = 0; p < program.pipes.size(); ++p) {
    double there = 0, back = 0;
    for (int s = 0; s < program.stages; ++s) {
      Device& device = devices[program.pipes[p].device_of[s]];
      device.head = std::min(device.head, there);
      device.tail = std::min(device.tail, back);
      const double way = At(costs.comm, s) + At(costs.latency, s);
      const double backward = time(split ? costs.bi : costs.b, s);
      there += time(costs.f, s) + way;
      back += backward + way;
      const double micros = microbatches * share_of_pipe[p];
      device.work += micros * (time(costs.f, s) + backward + (again ? time(costs.r, s) : 0));
      if (split) device.weights += micros * time(costs.bw, s);
      step = std::min(step, time(costs.step, s));
    }
  }
  double bound = 0;
  for (const Device& device : devices)
    if (device.head < HUGE_VAL)
      bound = std::max(bound, device.head + device.work + std::max(device.tail, device.weights));
  return bound + step;
}

// At least: the schedule, the reductions, each of which starts once its stage's last backward is
// over and which a device runs one after the other, and, as the gradients' norm needs all of them,
// the steps. With ZeRO-1 half of a reduction follows its step.
double ScheduleBound(const Program& program, const CostModel& costs, const Spans& spans) {
  const std::vector<double> shares = program.Shares();
  std::vector<double> over(program.stages);
  for (int d = 0; d < program.devices; ++d)
    for (size_t i = 0; i < spans[d].size(); ++i)
      if (const int stage = program.lists[d].body[i].stage; stage >= 0)
        over[stage] = std::max(over[stage], spans[d][i].end);
  const Placement placement(program);
  double reduced = 0, rest = 0;
  for (int d = 0; d < program.devices; ++d) {
    std::vector<std::pair<double, double>> reductions;  // when it can start, how long it takes
    double steps = 0, first_step = HUGE_VAL, after = 0;
    for (const Placement::Copy& copy : placement.On(d)) {
      const int s = copy.stage;
      const double reduction = program.Copies() > 1 ? At(costs.reduce, s) * shares[s] : 0;
      const double step = At(costs.step, s) * shares[s];
      const double share = program.zero > 0 ? 0.5 : 1;
      reductions.emplace_back(over[s], share * reduction);
      after += (1 - share) * reduction;
      steps += step;
      first_step = std::min(first_step, step);
    }
    if (reductions.empty()) continue;
    std::sort(reductions.begin(), reductions.end());
    double time = 0;
    for (const auto& [start, length] : reductions) time = std::max(time, start) + length;
    reduced = std::max(reduced, time);
    rest = std::max({rest, steps, first_step + after});
  }
  return reduced + rest;
}

class Tuner {
 public:
  explicit Tuner(const TuneOptions& options) : options_(options) {}

  Result<Tuned> Run() {
    const auto begin = std::chrono::steady_clock::now();
    Doing("candidates");
    Enumerate();
    while (!open_.empty() && tuned_.best.size() < options_.shown) {
      Candidate next = open_.top();
      open_.pop();
      if (next.level == Level::kPlan) {
        tuned_.best.push_back(std::move(next));
        continue;
      }
      Doing(fmt::format("{} pp {} tp {} dp {}", next.compile.scheme, next.compile.shape.devices,
                        next.compile.job.tp, next.compile.replicas));
      GoOn(std::move(next));
    }
    for (; !open_.empty(); open_.pop()) tuned_.rest.push_back(open_.top());
    PP_RETURN_IF_ERROR(CheckFound());
    constexpr double kEqual = 1e-9;
    if (const double other = NextSeconds();
        other < HUGE_VAL && other > tuned_.best[0].seconds * (1 + kEqual)) {
      Doing("costs that drift");
      const auto drift = DriftUntil(*fastest_, fastest_waits_, other);
      PP_RETURN_IF_ERROR(drift.status());
      tuned_.drift = *drift;
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    tuned_.seconds = taken.count();
    PP_RETURN_IF_ERROR(VerifyEvaluation(*fastest_));
    tuned_.model_operations = OperationsOf(*fastest_);
    tuned_.plan = std::move(*fastest_);
    return std::move(tuned_);
  }

 private:
  struct Later {
    bool operator()(const Candidate& a, const Candidate& b) const {
      return a.seconds > b.seconds || (a.seconds == b.seconds && a.level < b.level);
    }
  };

  // What any other candidate takes at least.
  double NextSeconds() const {
    if (tuned_.best.size() > 1) return tuned_.best[1].seconds;
    return tuned_.rest.empty() ? HUGE_VAL : tuned_.rest.front().seconds;
  }

  void Doing(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }

  void Enumerate() {
    const ModelConfig& model = options_.job.model;
    const int most_peers = TensorParallelLimit(TableOf(model));
    const int node = options_.machine.node > 0 ? options_.machine.node : options_.devices;
    for (const int tp : Divisors(options_.devices, options_.tp)) {
      if (most_peers % tp != 0 || tp > node) continue;
      for (const int pp : Divisors(options_.devices / tp, options_.pp)) {
        const int dp = options_.devices / tp / pp;
        if (pp > model.layers || options_.batch % dp != 0) continue;
        for (const int size : Divisors(options_.batch / dp, options_.micro_batch_size)) {
          CompileOptions compile;
          compile.shape = {
              .devices = pp, .microbatches = options_.batch / dp / size, .stages_per_device = 0};
          compile.replicas = dp;
          if (options_.profile)
            compile.prices.profile = options_.profile;
          else
            compile.prices.machine = options_.machine;
          compile.job = options_.job;
          compile.job.tp = tp;
          compile.job.micro_batch_size = size;
          compile.balance_layers = true;
          AddSchemes(compile);
        }
      }
    }
  }

  Result<CostModel> CostsOf(const Program& program) {
    return options_.profile ? CostsOn(*options_.profile, program)
                            : CostsOn(options_.machine, program, &layouts_);
  }

  // Without a pipeline all schemes are one.
  void AddSchemes(const CompileOptions& base) {
    const bool alone = base.shape.devices == 1;
    for (const Scheme& scheme : Schemes()) {
      if (!options_.scheme.empty() && scheme.name != options_.scheme) continue;
      if (alone && options_.scheme.empty() && scheme.name != "1f1b") continue;
      CompileOptions compile = base;
      compile.scheme = scheme.name;
      Add(compile);
      for (int v = 2; scheme.parts == Scheme::kFree && !alone && v <= 4; ++v) {
        if (v == scheme.stages_per_device) continue;
        compile.shape.stages_per_device = v;
        Add(compile);
      }
    }
  }

  void Add(CompileOptions compile) {
    // As few micro-batches as show the pipes.
    Result<Program> program = Status::Invalid("");
    const int all = compile.shape.microbatches;
    for (const int few : {2 * compile.shape.devices, all})
      if (!program.ok() && few <= all && int64_t{few} * compile.shape.devices <= kMostCells)
        program = ScheduleOf(compile, few);
    if (!program.ok()) return;
    if (compile.passes == "mario" && int64_t{program->stages} * all > kMostMarioCells) return;
    compile.zero = program->Copies() > 1;
    program->zero = compile.zero;
    const auto costs = CostsOf(*program);
    if (!costs.ok()) return;
    Candidate candidate{
        .compile = compile,
        .seconds = WorkBound(*program, *costs, all, compile.passes == "apply-checkpoint"),
        .bytes = LiveBytes(program->Head(), &layouts_)};
    if (!Fits(candidate, "weights, gradients and optimizer")) return;
    if (int64_t{program->stages} * all > kMostCells) {
      candidate.fits = false;
      candidate.lacks = "more micro-batches than can be compiled";
      tuned_.large.push_back(std::move(candidate));
    } else {
      open_.push(std::move(candidate));
    }
  }

  bool Fits(Candidate& candidate, const char* takes) {
    candidate.fits = candidate.bytes <= options_.memory;
    if (candidate.fits) return true;
    candidate.lacks = takes;
    tuned_.large.push_back(candidate);
    return false;
  }

  // To the next level. A candidate that turns out to be illegal is none.
  void GoOn(Candidate candidate) {
    const bool scheduled = candidate.level == Level::kSchedule;
    if (!(scheduled ? Plan(candidate) : Schedule(candidate))) return;
    if (Fits(candidate, scheduled ? "the whole plan" : "values that its schedule keeps")) {
      open_.push(std::move(candidate));
    } else if (candidate.compile.passes.empty()) {
      candidate.compile.passes = "apply-checkpoint";
      Add(candidate.compile);
      candidate.compile.passes = "mario";
      Add(candidate.compile);
    }
  }

  bool Schedule(Candidate& candidate) {
    auto program = ScheduleOf(candidate.compile);
    if (!program.ok()) return false;
    const auto costs = CostsOf(*program);
    if (!costs.ok()) return false;
    PassContext context{.costs = *costs};
    context.costs.reduce = {0};  // the lists do not have them yet
    for (const Pass& pass : Passes())
      if (pass.name == candidate.compile.passes && !pass.run(*program, context).ok()) return false;
    if (candidate.compile.passes == "mario")
      for (const Pass& pass : MarioPasses())
        if (!pass.run(*program, context).ok()) return false;
    candidate.bytes = std::max(candidate.bytes, LiveBytes(*program, &layouts_));
    candidate.level = Level::kSchedule;
    if (candidate.bytes > options_.memory) return true;
    const auto spans =
        IdealTimeline(*program, FindMessages(*program), Durations(context.costs, *program));
    if (!spans.ok()) return false;
    candidate.seconds = std::max(candidate.seconds, ScheduleBound(*program, *costs, *spans));
    return true;
  }

  bool Plan(Candidate& candidate) {
    CompileOptions compile = candidate.compile;
    compile.proves = false;  // once is enough, below
    auto program = Compile(compile);
    if (!program.ok()) return false;
    const auto costs = pp::CostsOf(*program, program->costs);
    std::vector<WaitsFor> waits_for;
    if (!costs.ok() || !Verify(*program, Depth::kPlan, &waits_for).ok()) return false;
    const auto prediction = Simulate(*program, waits_for, *costs);
    if (!prediction.ok()) return false;
    candidate.seconds = prediction->makespan;
    candidate.bubble = prediction->bubble;
    candidate.bytes = 0;
    for (const DeviceList& list : program->lists)
      candidate.bytes = std::max(candidate.bytes, static_cast<double>(list.arena_bytes));
    candidate.level = Level::kPlan;
    if (candidate.bytes <= options_.memory && candidate.seconds < fastest_seconds_) {
      fastest_seconds_ = candidate.seconds;
      fastest_ = std::move(*program);
      fastest_waits_ = std::move(waits_for);
    }
    return true;
  }

  Status CheckFound() const {
    if (!tuned_.best.empty()) return {};
    if (tuned_.large.empty())
      return Status::Invalid(
          "--devices: no scheme, pipeline and micro-batch size is legal for them, the model and "
          "the "
          "batch");
    const Candidate& least =
        *std::min_element(tuned_.large.begin(), tuned_.large.end(),
                          [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    return Status::Invalid(fmt::format(
        "--device-memory: {:.4g} GiB hold no plan ({} with pp {}, tp {}, dp {} needs {:.4g} GiB at "
        "least: {})",
        options_.memory / (1 << 30), least.compile.scheme, least.compile.shape.devices,
        least.compile.job.tp, least.compile.replicas, least.bytes / (1 << 30), least.lacks));
  }

  // Of a step, without recomputation.
  static double OperationsOf(const Program& program) {
    const Job& job = *program.job;
    double operations = 0;
    for (int s = 0; s < program.stages; ++s) {
      const StageWork work = WorkOf(LayoutStage(job, s), job);
      operations += work.forward.operations + work.input.operations + work.weight.operations;
    }
    return operations * program.microbatches * program.replicas * job.tp;
  }

  const TuneOptions& options_;
  std::priority_queue<Candidate, std::vector<Candidate>, Later> open_;
  Tuned tuned_;
  Layouts layouts_;
  std::optional<Program> fastest_;  // of the candidates with exact times that fit
  std::vector<WaitsFor> fastest_waits_;
  double fastest_seconds_ = HUGE_VAL;
};

}  // namespace

Result<Tuned> Tune(const TuneOptions& options) { return Tuner(options).Run(); }

}  // namespace pp
