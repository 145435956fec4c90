#include "compiler/machine/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "compiler/machine/costs.h"
#include "schema/model/layout.h"

namespace pp {
namespace {

// What is assumed of a machine before it is measured: how its times relate to one another. What
// runs beside the kernels takes their time where ranks have no cores for it.
Machine AssumedOf(const Profile& profile) {
  if (profile.job.backend == DeviceKind::kCuda) return *FindMachine("h200");
  Machine machine = *FindMachine("cpu");
  if (profile.cores > profile.threads) machine.contention = 0;
  return machine;
}

// The stages that were measured, each on a device of its own.
Program StagesOf(const Profile& profile) {
  Program program;
  program.devices = program.stages = profile.job.stages();
  program.job = profile.job;
  program.pipes.resize(1);
  for (int s = 0; s < program.stages; ++s) program.pipes[0].device_of.push_back(s);
  return program;
}

// What instructions of one kind take in all, as measured and as assumed.
struct Taken {
  double measured = 0, assumed = 0;

  void Add(const Profile& profile, Measured kind, const PerStage& costs) {
    for (int s = 0; s < profile.job.stages(); ++s)
      if (profile.of(kind)[s] > 0 && At(costs, s) > 0) {
        measured += profile.of(kind)[s];
        assumed += At(costs, s);
      }
  }
  // `otherwise`: if there were none.
  double Factor(double otherwise) const { return assumed > 0 ? measured / assumed : otherwise; }
};

// How many times as long as assumed instructions take.
struct Factors {
  double f = 1, r = 1, b = 1, bi = 1, bw = 1;
};

using SameSize = std::vector<const Profile*>;  // whose micro-batches have as many tokens

Factors FactorsOf(const SameSize& profiles, const Machine& machine) {
  Taken f, r, b, bi, bw;
  for (const Profile* profile : profiles) {
    const CostModel assumed = *CostsOn(machine, StagesOf(*profile));
    f.Add(*profile, Measured::kF, assumed.f);
    r.Add(*profile, Measured::kR, assumed.r);
    b.Add(*profile, Measured::kB, assumed.b);
    bi.Add(*profile, Measured::kBi, assumed.bi);
    bw.Add(*profile, Measured::kBw, assumed.bw);
  }
  Factors factors;
  factors.f = f.Factor(1);
  factors.r = r.Factor(factors.f);
  const double halves = b.Factor(factors.f);
  factors.bi = bi.Factor(halves);
  factors.bw = bw.Factor(halves);
  factors.b = b.Factor((factors.bi + factors.bw) / 2);
  return factors;
}

// Of profiles with as many tensor-parallel peers, whose collectives they measured, if there are
// any.
Factors FactorsFor(const Job& job, const Profiles& profiles, const Machine& machine) {
  const auto has_peers = [&](const Profile& profile) { return profile.job.tp == job.tp; };
  const bool some = std::any_of(profiles.begin(), profiles.end(), has_peers);
  std::map<int64_t, SameSize> sizes;
  for (const Profile& profile : profiles)
    if (!some || has_peers(profile)) sizes[profile.job.tokens()].push_back(&profile);
  const int64_t tokens = job.tokens();
  const auto above = sizes.lower_bound(tokens);
  if (above == sizes.end()) return FactorsOf(std::prev(above)->second, machine);
  const Factors high = FactorsOf(above->second, machine);
  if (above == sizes.begin() || above->first == tokens) return high;
  const auto below = std::prev(above);
  const Factors low = FactorsOf(below->second, machine);
  const auto log = [](int64_t size) { return std::log(static_cast<double>(size)); };
  const double at = (log(tokens) - log(below->first)) / (log(above->first) - log(below->first));
  return {.f = std::lerp(low.f, high.f, at),
          .r = std::lerp(low.r, high.r, at),
          .b = std::lerp(low.b, high.b, at),
          .bi = std::lerp(low.bi, high.bi, at),
          .bw = std::lerp(low.bw, high.bw, at)};
}

// The seconds for a byte, of the stages that were measured; 0 if none were.
template <typename BytesOf>
double PerByte(const Profiles& profiles, Measured kind, BytesOf bytes_of) {
  double seconds = 0, bytes = 0;
  for (const Profile& profile : profiles)
    for (int s = 0; s < profile.job.stages(); ++s)
      if (profile.of(kind)[s] > 0) {
        seconds += profile.of(kind)[s];
        bytes += static_cast<double>(bytes_of(LayoutStage(profile.job, s)));
      }
  return bytes > 0 ? seconds / bytes : 0;
}

// Over all stages of all profiles that measured it.
std::optional<double> MeanOf(const Profiles& profiles, Measured kind) {
  double sum = 0;
  int count = 0;
  for (const Profile& profile : profiles)
    for (const double seconds : profile.of(kind))
      if (seconds >= 0) sum += seconds, ++count;
  return count > 0 ? std::optional(sum / count) : std::nullopt;
}

bool SameStages(const Job& a, const Job& b) {
  return a.layers_per_stage == b.layers_per_stage && a.micro_batch_size == b.micro_batch_size &&
         a.sequence_length == b.sequence_length && a.tp == b.tp &&
         a.sequence_parallel == b.sequence_parallel && a.recompute == b.recompute &&
         a.keep == b.keep && a.lora == b.lora;
}

// Over the profiles of these stages that measured it.
std::optional<double> MeanOf(const Profiles& profiles, const Job& job, Measured kind, int stage) {
  double sum = 0;
  int count = 0;
  for (const Profile& profile : profiles)
    if (SameStages(profile.job, job) && profile.of(kind)[stage] >= 0)
      sum += profile.of(kind)[stage], ++count;
  return count > 0 ? std::optional(sum / count) : std::nullopt;
}

}  // namespace

Status CheckAlike(const Profile& first, const Profile& other) {
  if (!(first.job.model == other.job.model))
    return Status::Invalid("was measured of another model");
  if (first.job.dtype != other.job.dtype || first.job.backend != other.job.backend)
    return Status::Invalid(fmt::format("was measured with {} on {}, the first one with {} on {}",
                                       NameOf(other.job.dtype), NameOf(other.job.backend),
                                       NameOf(first.job.dtype), NameOf(first.job.backend)));
  if (first.threads != other.threads)
    return Status::Invalid(fmt::format("was measured with {} threads, the first one with {}",
                                       other.threads, first.threads));
  if (first.host != other.host)
    return Status::Invalid(
        fmt::format("was measured on {}, the first one on {}", other.host, first.host));
  return {};
}

Machine FitMachine(const Profiles& profiles) {
  Machine machine = AssumedOf(profiles.front());
  Taken taken;
  for (const Profile& profile : profiles) {
    const CostModel assumed = *CostsOn(machine, StagesOf(profile));
    taken.Add(profile, Measured::kF, assumed.f);
    taken.Add(profile, Measured::kB, assumed.b);
    taken.Add(profile, Measured::kBi, assumed.bi);
    taken.Add(profile, Measured::kBw, assumed.bw);
  }
  const double factor = taken.Factor(1);
  for (double& flops : machine.flops) flops /= factor;
  machine.name = "the profile's machine";
  machine.memory_bandwidth /= factor;
  machine.launch *= factor;
  machine.memory = 0;
  return machine;
}

Result<CostModel> CostsOn(const Profiles& profiles, const Program& program) {
  const Job& job = *program.job;
  const Job& measured = profiles.front().job;
  if (!(measured.model == job.model))
    return Status::Invalid("was measured of another model (the plan's)");
  if (measured.dtype != job.dtype || measured.backend != job.backend)
    return Status::Invalid(fmt::format("was measured with {} on {}, the plan has {} on {}",
                                       NameOf(measured.dtype), NameOf(measured.backend),
                                       NameOf(job.dtype), NameOf(job.backend)));
  Machine machine = AssumedOf(profiles.front());
  const Factors factors = FactorsFor(job, profiles, machine);
  auto costs = CostsOn(machine, program);
  if (!costs.ok()) return costs;
  const std::pair<PerStage*, double> scaled[] = {{&costs->f, factors.f},
                                                 {&costs->r, factors.r},
                                                 {&costs->b, factors.b},
                                                 {&costs->bi, factors.bi},
                                                 {&costs->bw, factors.bw}};
  for (const auto& [times, factor] : scaled)
    for (double& time : *times) time *= factor;
  // Messages, steps and reductions are by their bytes; of what was not measured, the machine's time
  // stays.
  const double message =
      PerByte(profiles, Measured::kComm, [](const StageLayout& l) { return l.act_bytes; });
  // Of the weights that are trained.
  const auto trained = [](const StageLayout& l) {
    return std::max<int64_t>(0, l.weights_bytes - l.trained);
  };
  const double step = PerByte(profiles, Measured::kStep, trained);
  const double reduce =
      PerByte(profiles, Measured::kReduce, [](const StageLayout& l) { return l.wgrad_bytes; });
  const std::vector<double> shares = program.Shares();
  for (int s = 0; s < program.stages; ++s) {
    const StageLayout layout = LayoutStage(job, s);
    if (message > 0 && !layout.last)
      costs->comm[s] = message * static_cast<double>(layout.act_bytes);
    if (step > 0) costs->step[s] = step * static_cast<double>(trained(layout)) / shares[s];
    if (reduce > 0) costs->reduce[s] = reduce * static_cast<double>(layout.wgrad_bytes) / shares[s];
  }
  const auto take = [&](Measured kind, PerStage& values, bool divided) {
    for (int s = 0; s < program.stages; ++s)
      if (const auto seconds = MeanOf(profiles, job, kind, s))
        values[s] = *seconds / (divided ? shares[s] : 1);
  };
  const auto take_mean = [&](Measured kind, PerStage& values) {
    if (const auto seconds = MeanOf(profiles, kind)) values.assign(values.size(), *seconds);
  };
  take_mean(Measured::kLatency, costs->latency);
  take_mean(Measured::kPost, costs->post);
  take(Measured::kF, costs->f, true);
  take(Measured::kR, costs->r, true);
  take(Measured::kBi, costs->bi, true);
  take(Measured::kBw, costs->bw, true);
  for (int s = 0; s < program.stages; ++s)
    if (MeanOf(profiles, job, Measured::kBi, s) && MeanOf(profiles, job, Measured::kBw, s))
      costs->b[s] = costs->bi[s] + costs->bw[s];
  take(Measured::kB, costs->b, true);
  take(Measured::kStep, costs->step, true);
  take(Measured::kComm, costs->comm, false);
  return costs;
}

namespace {

// Of a program whose micro-batches are all alike.
Result<CostModel> CostsOfOne(const PriceSource& source, const Program& program) {
  if (!source.stages && !program.job)
    return Status::Invalid(fmt::format(
        "{}: needs --model", source.machine ? "--machine, --device-flops" : "--costs: a profile"));
  if (source.machine && source.layouts)
    return CostsOn(*source.machine, program, source.layouts.get());
  if (source.machine) return CostsOn(*source.machine, program);
  Result<CostModel> costs =
      !source.stages ? CostsOn(source.profiles, program)
      : program.job  ? Status::Invalid("costs of the stages of another model (without --model)")
                     : CostsOfStages(*source.stages, program);
  return costs.ok() ? costs : costs.status().In("--costs: " + source.names);
}

}  // namespace

Result<CostModel> CostsOn(const PriceSource& source, const Program& program) {
  if (program.shapes() == 1) return CostsOfOne(source, program);
  std::vector<CostModel> shapes;
  for (int shape = 0; shape < program.shapes(); ++shape) {
    Program one = program.Head();
    one.job = program.job->OfShape(shape);
    one.shape_of.clear();
    auto costs = CostsOfOne(source, one);
    if (!costs.ok()) return costs;
    shapes.push_back(std::move(*costs));
  }
  return OfShapes(shapes, program.stages);
}

}  // namespace pp
