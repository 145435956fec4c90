#include "compiler/tune/node.h"

#include <algorithm>
#include <utility>

#include "schema/sections.h"

namespace pp {
namespace {

constexpr int kMostCompared = 32;  // micro-batches of schemes on one device
constexpr int64_t kMostSketched = int64_t{1} << 22;

// Leaves one list with one instruction of each kind, alone and overlapping: nothing else is asked
// of a sketch's lists. Returns the kinds.
uint64_t Shrink(Program* sketch) {
  static_assert(2 * kOpNumbers <= 64);
  uint64_t seen = 0;
  sketch->lists.resize(1);
  std::vector<Instruction> kinds;
  for (const Instruction& i : sketch->lists[0].body) {
    const uint64_t kind = uint64_t{1} << (2 * static_cast<int>(i.op) + (i.overlap ? 1 : 0));
    if ((seen & kind) == 0) kinds.push_back(i);
    seen |= kind;
  }
  sketch->lists[0].body = std::move(kinds);
  return seen;
}

// Whether it is none of those schedules; then it is added.
bool IsOther(const Scheme& scheme, int stages, int microbatches,
             std::vector<std::pair<int, std::vector<Instruction>>>* schedules) {
  const auto built =
      BuildSchedule(std::string(scheme.name),
                    {.devices = 1, .microbatches = microbatches, .stages_per_device = stages});
  if (!built.ok() || Overlaps(*built)) return false;
  const auto& body = built->lists[0].body;
  const bool whole = std::none_of(body.begin(), body.end(),
                                  [](const Instruction& i) { return i.op == Op::kBackwardInput; });
  if (built->stages == 1 && whole && scheme.name != "1f1b") return false;
  std::pair schedule(built->stages, body);
  if (std::find(schedules->begin(), schedules->end(), schedule) != schedules->end()) return false;
  schedules->push_back(std::move(schedule));
  return true;
}

}  // namespace

bool Overlaps(const Program& program) { return program.overlaps || program.MakesVersions(); }

Sketches::Sketch& Sketches::Of(const Scheme& scheme, Shape shape) {
  const int all = shape.microbatches;
  const int few = std::min(2 * shape.devices, all);
  const std::tuple key(scheme.name, shape.devices, shape.stages_per_device, few);
  const auto found = sketches_.find(key);
  // A scheme may refuse so few of them.
  if (found != sketches_.end() &&
      (found->second.program.ok() || few == all || overlapping_.contains(scheme.name)))
    return found->second;
  Result<Program> program = Status::Invalid("");
  for (const int some : {few, all})
    if (!program.ok() && int64_t{some} * shape.devices <= kMostSketched) {
      shape.microbatches = some;
      program = BuildSchedule(std::string(scheme.name), shape);
    }
  if (program.ok() && Overlaps(*program)) {  // whatever the size
    overlapping_.insert(scheme.name);
    program = Status::Invalid("its steps overlap, on older weights (one that trains as others)");
  }
  const uint64_t kinds = program.ok() ? Shrink(&*program) : 0;
  return sketches_.insert_or_assign(key, Sketch{std::move(program), kinds}).first->second;
}

const Sketches::Ones& Sketches::SchemesOn(int devices, int microbatches) {
  const int some = devices > 1 ? 0 : std::min(microbatches, kMostCompared);
  const auto [found, is_new] = ones_.try_emplace({devices, some});
  if (!is_new) return found->second;
  std::vector<std::pair<int, std::vector<Instruction>>> schedules;  // stages, and the list
  const bool any = options_.scheme.empty();
  for (const Scheme& scheme : Schemes()) {
    if (!any && scheme.name != options_.scheme) continue;
    for (const int stages : StagesToTry(options_, scheme, devices))
      if (devices > 1 || !any || IsOther(scheme, stages, some, &schedules))
        found->second.emplace_back(&scheme, stages);
  }
  return found->second;
}

int Jobs::Of(int tp, int size, bool sequence_parallel) {
  Job job = options_.job;
  job.tp = tp;
  job.micro_batch_size = size;
  job.sequence_parallel = sequence_parallel;
  auto keeps = KeepsToTry(options_, job);
  return Add(std::move(job), std::move(keeps), 0);
}

std::vector<int> Jobs::Smaller(int job) {
  std::vector<int> all;
  for (size_t i = 1; entries_[job]->keep == 0 && i < entries_[job]->keeps.size(); ++i)
    all.push_back(Add(entries_[job]->job, entries_[job]->keeps, i));
  return all;
}

int Jobs::Add(Job job, std::vector<std::vector<OperatorKind>> keeps, size_t keep) {
  const std::tuple key(job.tp, job.micro_batch_size, job.sequence_parallel, keep);
  const auto [number, is_new] = numbers_.try_emplace(key, static_cast<int>(entries_.size()));
  if (!is_new) return number->second;
  auto entry = std::make_unique<Entry>();
  job.keep = keeps[keep];
  job.layers_per_stage = {job.model.layers};
  entry->legal = CheckJob(job);
  if (entry->legal.ok()) entry->costs = LayerCostsOf(job, prices_);
  entry->job = std::move(job);
  entry->keeps = std::move(keeps);
  entry->keep = keep;
  entries_.push_back(std::move(entry));
  return number->second;
}

Status Jobs::Put(int job, const Scheme& scheme, Program* program) {
  Entry& entry = *entries_[job];
  PP_RETURN_IF_ERROR(entry.legal);
  PP_RETURN_IF_ERROR(entry.costs.status());
  program->job = entry.job;
  std::vector<int>& layers = program->job->layers_per_stage;
  if (!options_.cuts.empty()) {
    layers = options_.cuts;
  } else {
    const LayerCosts& costs = *entry.costs;
    const std::tuple key(costs.first, costs.layer, costs.last, scheme.map, program->devices,
                         program->stages);
    const auto [balanced, is_new] = balances_.try_emplace(key);
    if (is_new) balanced->second = BalanceLayers(*program, entry.job.model.layers, costs);
    layers = balanced->second;
  }
  PP_RETURN_IF_ERROR(CheckSplit(layers, entry.job.model.layers, program->stages));
  if (layers.size() > 2 && std::find(layers.begin() + 1, layers.end() - 1, 0) != layers.end() - 1)
    return Status::Invalid("a stage in the middle has no layer");
  return {};
}

CompileOptions CompileOf(const TuneOptions& options, const PriceSource& prices, const Job& job,
                         const Node& node) {
  CompileOptions compile;
  compile.scheme = node.scheme->name;
  compile.shape = node.shape();
  compile.replicas = node.replicas;
  compile.zero = node.variant.zero;
  compile.rank_order = node.variant.rank_order;
  if (node.way == Way::kAll) compile.passes = "apply-checkpoint";
  if (node.way == Way::kMario) compile.passes = "mario";
  compile.prices = prices;
  compile.job = job;
  compile.job.layers_per_stage = options.cuts;
  compile.balance_layers = options.cuts.empty();
  if (node.way != Way::kFit) return compile;
  compile.fit.limit = {MemoryLimit::kBytes, {options.memory}};
  compile.fit.quick = options.search_seconds == 0;
  compile.fit.search_seconds = options.search_seconds;
  return compile;
}

Candidate CandidateOf(CompileOptions compile, const Node& node) {
  return {.compile = std::move(compile),
          .level = node.level,
          .open = node.open,
          .counted = node.counted,
          .seconds = node.seconds,
          .bytes = node.bytes,
          .bubble = node.bubble,
          .parts = node.parts,
          .fits = node.fits,
          .lacks = node.lacks};
}

}  // namespace pp
