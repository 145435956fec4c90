#include "compiler/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <set>
#include <utility>

#include "compiler/balance.h"
#include "compiler/search/search.h"
#include "schema/base/background.h"
#include "schema/base/split.h"
#include "schema/check.h"
#include "schema/proof/verify.h"
#include "schema/routines.h"
#include "schema/semantics/schedule.h"

namespace pp {
namespace {

// Runs `work`, then tells the observer.
template <typename Work>
Status Timed(const PassObserver& observer, std::string_view name, const Program& program,
             Work work) {
  if (observer.begin) observer.begin(name);
  const auto begin = std::chrono::steady_clock::now();
  PP_RETURN_IF_ERROR(work());
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  if (observer.end) observer.end(name, program, taken.count());
  return {};
}

Status RunPass(const Pass& pass, Program& program, const PassContext& context,
               const PassObserver& observer) {
  PP_RETURN_IF_ERROR(
      Timed(observer, pass.name, program, [&] { return pass.run(program, context); }));
  if (!context.proves) return {};
  return Timed(observer, "verify", program, [&] {
    // What is put beside a step is proved alone.
    return (pass.leaves == Form::kWhole ? VerifyRoutines(program, Depth::kLists)
                                        : Verify(program, DepthOf(pass.leaves)))
        .In(fmt::format("after {}", pass.name));
  });
}

// The model's part of the program.
Status AddJob(const CompileOptions& options, Program& program) {
  Job job = options.job;
  if (!job.has_model()) {
    const char* given = options.balance_layers ? "--layers-per-stage" : nullptr;
    ForEachRow(kJobAttributes, [&](const auto& row) {
      if (job.*row.member != Job{}.*row.member) given = row.option;
    });
    return given ? Status::Invalid(fmt::format("{}: needs --model", given)) : Status();
  }
  const ModelConfig& model = job.model;
  if (job.shapes.given()) {
    job.micro_batch_size = job.shapes.largest().sequences;
    job.sequence_length = job.shapes.largest().tokens;
  }
  if (job.sequence_length == 0) job.sequence_length = model.max_positions;
  job.lora = WithTargets(job);
  if (options.balance_layers) {
    const auto costs = LayerCostsOf(job, options.prices);
    PP_RETURN_IF_ERROR(costs.status());
    job.layers_per_stage = BalanceLayers(program, model.layers, *costs);
  } else if (job.layers_per_stage.empty()) {
    auto split = SplitLayers(model.layers, program.stages);
    if (!split.ok()) return split.status().In("--model");
    job.layers_per_stage = *split;
  } else {
    PP_RETURN_IF_ERROR(
        CheckSplit(job.layers_per_stage, model.layers, program.stages).In("--layers-per-stage"));
  }
  PP_RETURN_IF_ERROR(CheckJob(job));
  program.job = job;
  program.shape_of = job.shapes.ByMicrobatch();
  return {};
}

// "0,S-1", ascending.
Result<std::vector<int32_t>> ReadTied(const std::string& text, int32_t stages) {
  std::vector<int32_t> tied;
  bool right = true;
  for (const std::string_view word : Split(text, ',')) {
    const bool from_end = word.starts_with("S-");
    int32_t& stage = tied.emplace_back();
    right &= ReadWhole(word.substr(from_end ? 2 : 0), 0, kMostCount, &stage).ok();
    if (from_end) stage = stages - stage;
  }
  std::sort(tied.begin(), tied.end());
  if (right && CanBeTied(tied, stages)) return tied;
  return Status::Invalid(
      fmt::format("--tied: '{}' (two or more of the stages 0 to {}, each once; S-1 is the last)",
                  Shown(text), stages - 1));
}

// The stages that share a tensor: as lists say, or the option. A model says it itself.
Status AddTied(const CompileOptions& options, Program& program) {
  std::vector<int32_t> given = std::move(program.tied);
  program.tied.clear();
  if (!options.tied.empty()) {
    auto read = ReadTied(options.tied, program.stages);
    if (!read.ok()) return read.status();
    given = std::move(*read);
  }
  if (!program.job) {
    program.tied = std::move(given);
    return {};
  }
  const std::vector<int32_t> tied = program.TiedStages();
  if (given.empty() || given == tied) return {};
  const char* none = program.job->lora.given() ? "no stages that --lora trains" : "no stages";
  return Status::Invalid(fmt::format(
      "--tied: {}, but the model ties {} (with --model no --tied)", fmt::join(given, ","),
      tied.empty() ? none : fmt::format("{}", fmt::join(tied, ","))));
}

// The costs that are given, or that follow from a machine or a profile. `program` has pipes and
// job; without either it keeps those that it has.
Status AddCosts(const CompileOptions& options, Program& program) {
  if (!options.prices.given() && options.costs.empty()) return {};
  Program head = program.Head();
  CopyAttributes(options, &head);
  auto costs = options.prices.given() ? CostsOn(options.prices, head) : ParseCosts(options.costs);
  PP_RETURN_IF_ERROR(options.prices.given() ? costs.status() : costs.status().In("--costs"));
  PP_RETURN_IF_ERROR(CheckCosts(*costs, program.stages, head.shapes()).In("--costs"));
  program.costs = options.prices.given() ? Compact(std::move(*costs)) : std::move(*costs);
  return {};
}

// Whether there is a gradient norm. Lists that specify it take precedence.
Status AddClip(const CompileOptions& options, Program& program) {
  const bool versions = program.MakesVersions();
  if (versions && options.clip.value_or(false))
    return Status::Invalid(
        fmt::format("--grad-norm: exact, but {} steps before all gradients are complete, so there "
                    "is no norm (off)",
                    program.scheme));
  program.clip = options.clip.value_or(program.clip && !versions);
  if (program.clip && options.fit.objective == Objective::kPeriod)
    return Status::Invalid(
        "--objective: period, but for a gradient norm all devices wait for one another at the end "
        "of a step (--grad-norm off)");
  if (!options.job.has_model() || !InfoOf(options.job.dtype).scales_loss || program.clip) return {};
  // The norm tells every device that a gradient overflowed, so that it skips the update.
  if (versions)
    return Status::Invalid(
        fmt::format("--dtype: {} needs a gradient norm, {} has none (bf16, fp32)",
                    NameOf(options.job.dtype), program.scheme));
  return Status::Invalid(fmt::format("--grad-norm: off, but --dtype {} needs the norm (exact)",
                                     NameOf(options.job.dtype)));
}

// The requested passes, by name.
Result<std::vector<const Pass*>> FindPasses(const std::string& names) {
  std::vector<const Pass*> found;
  if (names.empty()) return found;
  for (const std::string_view name : Split(names, ',')) {
    if (name == "mario") {
      for (const Pass& pass : MarioPasses()) found.push_back(&pass);
      continue;
    }
    const Pass* match = nullptr;
    std::string known;
    for (const Pass& pass : Passes()) {
      if (pass.takes > Form::kSchedule) continue;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", pass.name);
      if (pass.name == name) match = &pass;
    }
    if (match == nullptr)
      return Status::Invalid(
          fmt::format("--passes: unknown pass '{}' ({})", Shown(name), "mario, " + known));
    found.push_back(match);
  }
  return found;
}

// How far a user's lists are lowered.
struct Content {
  bool messages = false;  // SEND, RECV
  bool more = false;      // WAIT, REDUCE, STEP ...: anything not about one micro-batch
};
Content ContentOf(const Program& program) {
  Content content;
  for (const DeviceList& list : program.lists)
    for (const Instruction& i : list.body) {
      content.messages |= IsMessage(i);
      content.more |= !Info(i.op).fields.Has(Field::kMicro);
    }
  return content;
}

// Where it is; of sections, its device.
std::string FirstMessage(const Program& program, const Naming& name) {
  for (int d = 0; d < program.devices; ++d) {
    const auto& list = program.lists[d].body;
    const auto first = std::find_if(list.begin(), list.end(), IsMessage);
    if (first != list.end()) return name(d, static_cast<size_t>(first - list.begin()));
  }
  return name(0, kItself);
}

// The requests of the options, checked.
struct Prepared {
  std::vector<const Pass*> passes;
  PassContext context;
};
Result<Prepared> Prepare(const CompileOptions& options, const Program& program) {
  auto passes = FindPasses(options.passes);
  if (!passes.ok()) return passes.status();
  auto costs = CostsOf(program);
  if (!costs.ok()) return costs.status();
  if (!options.fit.limit.values.empty()) {
    auto fit = FindPasses("fit-memory");
    if (!fit.ok()) return fit.status();
    if (std::find(passes->begin(), passes->end(), fit->front()) == passes->end())
      passes->push_back(fit->front());
  }
  Form form = Form::kSchedule;
  for (const Pass* pass : *passes) {
    if (pass->takes < form)
      return Status::Invalid(fmt::format(
          "--passes: '{}' after fit-memory (nothing may change what fits)", pass->name));
    form = pass->leaves;
  }
  return Prepared{std::move(*passes),
                  {.costs = *costs,
                   .reduce = options.reduce.value_or(Reduce::kEarly),
                   .fit = options.fit,
                   .proves = options.proves,
                   .evaluates = options.evaluates || HasEvaluation(program)}};
}

// That something can be dropped if --recompute says what to drop.
Status CheckRecompute(const CompileOptions& options, const Prepared& prepared,
                      const Program& program) {
  const auto drops = [](const Instruction& i) { return i.op == Op::kForwardDrop; };
  if (options.job.recompute.empty() ||
      std::any_of(prepared.passes.begin(), prepared.passes.end(),
                  [](const Pass* pass) {
                    return pass->name == "apply-checkpoint" || pass->name == "fit-memory";
                  }) ||
      std::any_of(program.lists.begin(), program.lists.end(), [&](const DeviceList& list) {
        return std::any_of(list.body.begin(), list.body.end(), drops);
      }))
    return {};
  return Status::Invalid(
      "--recompute: nothing is dropped (with --passes mario or apply-checkpoint, or "
      "--memory-limit)");
}

// The schedules of all schemes that place the same stages on the same devices; large ones are built
// at the same time.
std::vector<Program> RelatedTo(const Program& program, Shape shape) {
  shape.stages_per_device = program.StagesPerDevice();
  shape.group_size = 0;
  const bool large = search::IsLarge(program.stages * program.microbatches);
  const auto when = large ? kInBackground : std::launch::deferred;
  std::vector<std::future<Result<Program>>> built;
  for (const Scheme& scheme : Schemes()) {
    const std::string name(scheme.name);
    const auto placed = BuildPlacement(name, shape);
    if (placed.ok() && placed->pipes == program.pipes && placed->pipe_of == program.pipe_of)
      built.push_back(std::async(when, BuildSchedule, name, shape));
  }
  std::vector<Program> related;
  for (auto& future : built) {
    auto other = future.get();
    if (other.ok() && !other->overlaps) related.push_back(std::move(*other));
  }
  return related;
}

// From a schedule to a plan.
Status Finish(Program& program, Form leaves, const Prepared& prepared,
              const PassObserver& observer) {
  for (const Pass* pass : prepared.passes)
    PP_RETURN_IF_ERROR(RunPass(*pass, program, prepared.context, observer));
  for (const Pass& pass : PassesFrom(Form::kFitted))
    if (pass.leaves <= leaves)
      PP_RETURN_IF_ERROR(RunPass(pass, program, prepared.context, observer));
  return {};
}

}  // namespace

Status Lower(Program& program, Form form, const PassContext& context,
             const PassObserver& observer) {
  PassContext again = context;  // an evaluation is made anew
  again.evaluates |= HasEvaluation(program);
  DropRoutine(kEvaluationRoutine, &program);
  if (form < Form::kLists) DropRoutines(&program);
  for (const Pass& pass : PassesFrom(form))
    PP_RETURN_IF_ERROR(RunPass(pass, program, again, observer));
  return {};
}

namespace {

// The steps of a ramp but the largest ones, as far as lists.
Result<std::vector<Program>> CompileSteps(CompileOptions options) {
  std::set<int32_t> sizes;
  for (const BatchRamp::Stretch& stretch : options.ramp.stretches)
    sizes.insert(stretch.microbatches);
  sizes.erase(options.ramp.Most());
  options.ramp = {};
  options.leaves = Form::kLists;
  options.fit.report = nullptr;
  options.fit.progress = nullptr;
  const MemoryLimit limit = options.fit.limit;
  std::vector<Program> steps;
  for (const int32_t size : sizes) {
    options.shape.microbatches = size;
    options.fit.limit = limit;
    if (limit.unit == MemoryLimit::kActivations)  // more than that a step cannot have
      for (double& most : options.fit.limit.values) most = std::min(most, double(size));
    auto step = Compile(options);
    if (!step.ok())
      return step.status().In(
          fmt::format("--batch-ramp: steps of {} micro-batch{}", size, size == 1 ? "" : "es"));
    steps.push_back(std::move(*step));
  }
  return steps;
}

// That all steps of a ramp fit: they share a device's regions.
Status CheckLimit(const MemoryLimit& limit, const Program& program) {
  if (limit.values.empty() || limit.unit != MemoryLimit::kBytes) return {};
  for (int d = 0; d < program.devices; ++d) {
    const double most = limit.values[std::min<size_t>(d, limit.values.size() - 1)];
    if (static_cast<double>(program.lists[d].arena_bytes) > most)
      return Status::Invalid(
          fmt::format("--memory-limit: device {} needs {} bytes for all steps of --batch-ramp (as "
                      "many, or steps more alike)",
                      d, program.lists[d].arena_bytes));
  }
  return {};
}

}  // namespace

Result<Program> Compile(const CompileOptions& options, const PassObserver& observer) {
  Shape shape = options.shape;
  if (options.ramp.given()) shape.microbatches = options.ramp.Most();
  if (options.job.shapes.given())
    shape.microbatches = static_cast<int>(options.job.shapes.microbatches());
  Program program;
  PP_RETURN_IF_ERROR(Timed(observer, "scheme", program, [&]() -> Status {
    auto built = BuildSchedule(options.scheme, shape);
    if (!built.ok()) return built.status();
    program = std::move(*built);
    if (program.overlaps && options.ramp.given())
      return Status::Invalid(fmt::format(
          "--batch-ramp: the steps of {} overlap (a scheme whose steps do not)", program.scheme));
    if (!program.overlaps)
      PP_RETURN_IF_ERROR(CheckSchedule(program, NameByIndex).In(options.scheme));
    PP_RETURN_IF_ERROR(AddJob(options, program));
    PP_RETURN_IF_ERROR(AddTied(options, program));
    PP_RETURN_IF_ERROR(AddCosts(options, program));
    CopyAttributes(options, &program);
    PP_RETURN_IF_ERROR(CheckShapes(program));
    return AddClip(options, program);
  }));
  auto prepared = Prepare(options, program);
  if (!prepared.ok()) return prepared.status();
  PP_RETURN_IF_ERROR(CheckRecompute(options, *prepared, program));
  if (options.ramp.given()) {
    auto steps = CompileSteps(options);
    if (!steps.ok()) return steps.status();
    prepared->context.steps = std::move(*steps);
  }
  if (!options.fit.limit.values.empty()) prepared->context.fit.related = RelatedTo(program, shape);
  PP_RETURN_IF_ERROR(Finish(program, options.leaves, *prepared, observer));
  if (options.ramp.given()) PP_RETURN_IF_ERROR(CheckLimit(options.fit.limit, program));
  return program;
}

Result<Program> CompileLists(Program program, const Origin& origin, const CompileOptions& options,
                             const PassObserver& observer) {
  // Lists can say what they would drop, and drop nothing.
  const bool asked = !program.job || program.job->recompute != options.job.recompute;
  PP_RETURN_IF_ERROR(AddJob(options, program));
  PP_RETURN_IF_ERROR(AddTied(options, program));
  PP_RETURN_IF_ERROR(AddCosts(options, program));
  auto prepared = Prepare(options, program);
  if (!prepared.ok()) return prepared.status();
  if (asked) PP_RETURN_IF_ERROR(CheckRecompute(options, *prepared, program));
  Content content = ContentOf(program);
  // Without messages, what goes further may be the marks of a schedule, which passes take up.
  content.more = content.more && (content.messages || Verify(program, Depth::kLists).ok() ||
                                  !Verify(program, Depth::kSchedule).ok());
  if (!prepared->passes.empty() && (content.messages || content.more))
    return Status::Invalid(
        fmt::format("{}: {} has its messages (without them the lists can be changed)",
                    options.passes.empty() ? "--memory-limit" : "--passes", origin.file));
  if (options.ramp != program.ramp)
    return Status::Invalid("--batch-ramp: needs a scheme (lists have their steps)");
  if (content.more) {
    if (options.p2p != program.p2p || options.replicas != program.replicas ||
        options.zero != program.zero || options.reduce ||
        options.clip.value_or(program.clip) != program.clip)
      return Status::Invalid(fmt::format(
          "--p2p, --dp, --zero, --reduce, --grad-norm: {} has its messages and reductions (none of "
          "these)",
          origin.file));
    program.rank_order = options.rank_order;  // lists are of devices, not of ranks
    PP_RETURN_IF_ERROR(AddClip(options, program));
    PP_RETURN_IF_ERROR(Verify(program, Depth::kLists).In(origin.file));
    PP_RETURN_IF_ERROR(Lower(program, Form::kLists, prepared->context, observer).In(origin.file));
    return program;
  }
  for (const Routine& routine : program.routines)
    if (routine.name != kEvaluationRoutine)
      return Status::Invalid(
          fmt::format("{}: routine '{}', but the step has no WAIT yet (lists that go as far, or "
                      "none beside it)",
                      origin.file, routine.name));
  if (content.messages && program.overlaps)
    return Status::Invalid(
        fmt::format("{}: {}: SEND and RECV without WAIT, and steps that overlap (one of the two)",
                    origin.file, FirstMessage(program, origin.name)));
  if (!program.overlaps) PP_RETURN_IF_ERROR(CheckSchedule(program, origin.name).In(origin.file));
  GivenComm comm;
  for (DeviceList& list : program.lists) {
    if (content.messages) comm.push_back(list.body);
    std::erase_if(list.body, IsMessage);
  }
  DropRoutines(&program);
  if (content.messages) prepared->context.comm = &comm;
  const std::string passes = options.passes.empty() ? program.passes : options.passes;
  CopyAttributes(options, &program);
  program.passes = passes;
  PP_RETURN_IF_ERROR(AddClip(options, program));
  const auto loads = [](const Instruction& i) { return i.op == Op::kLoad; };
  if (std::none_of(program.lists.begin(), program.lists.end(), [&](const DeviceList& list) {
        return std::any_of(list.body.begin(), list.body.end(), loads);
      }))
    AddLoads(program);
  PP_RETURN_IF_ERROR(Verify(program, Depth::kSchedule).In(origin.file));
  PP_RETURN_IF_ERROR(Finish(program, options.leaves, *prepared, observer).In(origin.file));
  return program;
}

}  // namespace pp
