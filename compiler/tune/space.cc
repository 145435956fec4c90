#include "compiler/tune/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "schema/model/families.h"
#include "schema/model/operators.h"

namespace pp {
namespace {

// Stages of one layer, and the first and the last with and without: all there are, but for numbers.
Program SomeStages(Job job) {
  Program program;
  program.devices = program.stages = 3;
  program.microbatches = 1;
  program.pipes = {{{0, 1, 2}}};
  program.pipe_of = {0};
  job.layers_per_stage = {1, job.model.layers - 2, 1};
  program.job = std::move(job);
  return program;
}

// Whether no time and no bytes of any stage are larger than those of the other.
bool NeverLoses(const TuneOptions& options, const Job& job, const Job& other) {
  const Program one = SomeStages(job), two = SomeStages(other);
  const auto costs = CostsOn(options.machine, one), others = CostsOn(options.machine, two);
  if (!costs.ok() || !others.ok()) return false;
  for (const CostInfo& row : Costs())
    for (int s = 0; s < one.stages && !(*costs.*row.member).empty(); ++s)
      if (At(*costs.*row.member, s) > At(*others.*row.member, s)) return false;
  for (int s = 0; s < one.stages; ++s) {
    const StageLayout a = LayoutStage(*one.job, s), b = LayoutStage(*two.job, s);
    if (a.stash_bytes > b.stash_bytes || a.kept_bytes > b.kept_bytes || a.act_bytes > b.act_bytes ||
        a.weights_bytes > b.weights_bytes || a.wgrad_bytes > b.wgrad_bytes ||
        a.optimizer_bytes > b.optimizer_bytes)
      return false;
  }
  return true;
}

}  // namespace

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

std::vector<int> LegalPeers(const TuneOptions& options, int given) {
  const int most_peers = TensorParallelLimit(TableOf(options.job.model));
  const int node = options.machine.node > 0 ? options.machine.node : options.devices;
  std::vector<int> legal = Divisors(options.devices, given);
  std::erase_if(legal, [&](int tp) { return most_peers % tp != 0 || tp > node; });
  return legal;
}

Status CheckLayouts(const TuneOptions& o) {
  if (o.tp > 0) {
    Job job = o.job;
    job.tp = o.tp;
    job.layers_per_stage = {job.model.layers};
    PP_RETURN_IF_ERROR(CheckJob(job));
  }
  const std::vector<int> peers = LegalPeers(o, o.tp);
  if (peers.empty())
    return Status::Invalid(fmt::format("--tp: {} with --devices {} of {} ({})", o.tp, o.devices,
                                       Shown(o.machine.name), fmt::join(LegalPeers(o, 0), ", ")));
  std::set<int> pipelines, replicas;
  for (const int tp : peers)
    for (const int pp : Divisors(o.devices / tp, 0)) {
      if (pp > MostStages(o.job.model)) continue;
      pipelines.insert(pp);
      if (o.pp == 0 || o.pp == pp) replicas.insert(o.devices / tp / pp);
    }
  if (replicas.empty())
    return Status::Invalid(fmt::format("--pp: {} with --devices {}, tp {} and {} layers ({})", o.pp,
                                       o.devices, fmt::join(peers, " or "), o.job.model.layers,
                                       fmt::join(pipelines, ", ")));
  if (o.dp > 0 && !replicas.contains(o.dp))
    return Status::Invalid(fmt::format("--dp: {} with --devices {}{}{} ({})", o.dp, o.devices,
                                       o.pp > 0 ? fmt::format(", --pp {}", o.pp) : "",
                                       o.tp > 0 ? fmt::format(", --tp {}", o.tp) : "",
                                       fmt::join(replicas, ", ")));
  if (o.dp > 0) replicas = {o.dp};
  std::set<int> sizes;
  for (const int dp : replicas)
    if (o.batch % dp == 0)
      for (const int size : Divisors(o.batch / dp, 0)) sizes.insert(size);
  if (sizes.empty()) {
    // Multiples of a replica number that is one itself say nothing more.
    std::vector<int> least;
    std::set<int64_t> near;
    for (const int dp : replicas) {
      if (std::any_of(least.begin(), least.end(), [&](int d) { return dp % d == 0; })) continue;
      least.push_back(dp);
      if (o.batch > dp) near.insert(o.batch / dp * dp);
      near.insert((int64_t{o.batch} / dp + 1) * dp);
    }
    return Status::Invalid(
        fmt::format("--global-batch-size: {} does not divide over the {} replicas that --devices "
                    "{}{}{} leave (a multiple of {}: {})",
                    o.batch, fmt::join(replicas, " or "), o.devices,
                    o.pp > 0 ? fmt::format(", --pp {}", o.pp) : "",
                    o.tp > 0 ? fmt::format(", --tp {}", o.tp) : "", fmt::join(least, " or "),
                    fmt::join(near, ", ")));
  }
  if (o.micro_batch_size == 0 || sizes.contains(o.micro_batch_size)) return {};
  return Status::Invalid(
      fmt::format("--micro-batch-size: {} does not divide a replica's share of --global-batch-size "
                  "{} ({})",
                  o.micro_batch_size, o.batch, fmt::join(sizes, ", ")));
}

std::vector<int> StagesToTry(const TuneOptions& options, const Scheme& scheme, int devices) {
  if (const int stages = static_cast<int>(options.cuts.size()); stages > 0) {
    const bool whole = stages == devices;
    if (stages % devices != 0 || scheme.name != (whole ? "1f1b" : "interleaved")) return {};
    return {whole ? 0 : stages / devices};
  }
  const int given = options.stages_per_device;
  if (given > 0) {
    const bool takes = scheme.parts == Scheme::kFree || scheme.stages_per_device == given;
    return takes ? std::vector<int>{scheme.parts == Scheme::kFree ? given : 0} : std::vector<int>();
  }
  std::vector<int> all = {0};
  const int layers = options.job.model.layers;
  const int most = scheme.parts == Scheme::kFree ? MostStages(options.job.model) / devices : 0;
  for (int v = 2; v <= most; ++v) {
    const int stages = devices * v;
    const bool even =
        layers % stages == 0 || (layers + 1) % stages == 0 || (layers + 2) % stages == 0;
    if (even && v != scheme.stages_per_device) all.push_back(v);
  }
  return all;
}

std::vector<std::vector<OperatorKind>> KeepsToTry(const TuneOptions& options, const Job& job) {
  if (options.keep) return {job.keep};
  std::vector<OperatorKind> able;
  const ModelTable table = TableOf(job);
  for (const Operator& op : table.layer) {
    const std::string_view name = NameOf(op.kind);
    const bool named =
        std::find(std::begin(kKeepNames) + 1, std::end(kKeepNames), name) != std::end(kKeepNames);
    if (named && !(op.kind == OperatorKind::kNorm && job.sequence_parallel) &&
        std::find(able.begin(), able.end(), op.kind) == able.end())
      able.push_back(op.kind);
  }
  std::sort(able.begin(), able.end());
  std::vector<std::vector<OperatorKind>> keeps;
  if (!able.empty()) keeps.push_back(able);
  if (able.size() > 1)
    for (const OperatorKind kind : able) keeps.push_back({kind});
  keeps.emplace_back();
  return keeps;
}

std::vector<bool> SequenceParallelToTry(const TuneOptions& options, const Job& job) {
  if (options.sequence_parallel) return {job.sequence_parallel};
  if (job.tp == 1 || job.tokens() % job.tp != 0) return {false};
  if (!options.profiles.empty() || job.model.layers < 3) return {false, true};
  Job with = job, without = job;
  with.sequence_parallel = true;
  with.keep = KeepsToTry(options, with).front();
  without.keep = KeepsToTry(options, without).front();
  const bool kept = NeverLoses(options, with, without);
  with.keep = KeepsToTry(options, with).back();
  without.keep = KeepsToTry(options, without).back();
  if (kept && NeverLoses(options, with, without)) return {true};
  return {false, true};
}

std::vector<Variant> VariantsToTry(const TuneOptions& options, const Program& program) {
  std::vector<int> zeros = {0};
  if (program.Copies() > 1)
    zeros = options.zero ? std::vector<int>{*options.zero} : std::vector{1, 0};
  const int node = options.machine.node;
  std::vector<RankOrder> orders = {options.rank_order.value_or(RankOrder::kTpPpDp)};
  if (!options.rank_order && program.devices > 1 && program.replicas > 1 &&
      options.profiles.empty() && node > 0 && options.devices > node)
    orders.push_back(RankOrder::kTpDpPp);
  std::vector<Variant> variants;
  for (const int zero : zeros)
    for (const RankOrder order : orders) variants.push_back({zero, order});
  return variants;
}

}  // namespace pp
