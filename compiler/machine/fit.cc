#include "compiler/machine/fit.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "compiler/machine/costs.h"
#include "schema/model/layout.h"

namespace pp {
namespace {

// What is assumed of a machine before it is measured: how its times relate to one another.
Machine Assumed(DeviceKind backend) {
  if (backend == DeviceKind::kCuda) return Machines().back();
  // One core with AVX-512. With ten microseconds an operator a profile of micro-batches of two
  // sequences predicts those of one, four and eight best (GPT-2 and LLaMA, 96 to 256 wide: 4.9 %
  // off, 8.4 % with one microsecond). A collective reads, adds and writes what is in no cache; two
  // that meet wake each other, which takes 24 to 120 us in a virtual machine.
  Machine machine{.attention = 0.5, .launch = 1e-5, .memory_bandwidth = 8e9};
  machine.inside = machine.between = {.bandwidth = machine.memory_bandwidth / 4, .latency = 30e-6};
  machine.flops.fill(70e9);
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

// How many times as long as assumed an instruction of that kind takes; `otherwise` if there was
// none.
double Factor(const Profile& profile, Measured kind, const PerStage& assumed, double otherwise) {
  double measured = 0, expected = 0;
  for (int s = 0; s < profile.job.stages(); ++s)
    if (profile.of(kind)[s] > 0 && At(assumed, s) > 0) {
      measured += profile.of(kind)[s];
      expected += At(assumed, s);
    }
  return expected > 0 ? measured / expected : otherwise;
}

struct Factors {
  double f = 1, r = 1, b = 1, bi = 1, bw = 1;
};
Factors FactorsOf(const Profile& profile, const CostModel& assumed) {
  Factors factors;
  factors.f = Factor(profile, Measured::kF, assumed.f, 1);
  factors.r = Factor(profile, Measured::kR, assumed.r, factors.f);
  factors.b = Factor(profile, Measured::kB, assumed.b, 0);
  const double halves = factors.b > 0 ? factors.b : factors.f;
  factors.bi = Factor(profile, Measured::kBi, assumed.bi, halves);
  factors.bw = Factor(profile, Measured::kBw, assumed.bw, halves);
  if (factors.b == 0) factors.b = (factors.bi + factors.bw) / 2;
  return factors;
}

// The seconds for a byte, of the stages that were measured; 0 if none were.
template <typename BytesOf>
double PerByte(const Profile& profile, Measured kind, BytesOf bytes_of) {
  double seconds = 0, bytes = 0;
  for (int s = 0; s < profile.job.stages(); ++s)
    if (profile.of(kind)[s] > 0) {
      seconds += profile.of(kind)[s];
      bytes += static_cast<double>(bytes_of(LayoutStage(profile.job, s)));
    }
  return bytes > 0 ? seconds / bytes : 0;
}

bool SameStages(const Job& a, const Job& b) {
  return a.layers_per_stage == b.layers_per_stage && a.micro_batch_size == b.micro_batch_size &&
         a.sequence_length == b.sequence_length && a.tp == b.tp &&
         a.sequence_parallel == b.sequence_parallel && a.recompute == b.recompute;
}

}  // namespace

Machine FitMachine(const Profile& profile) {
  Machine machine = Assumed(profile.job.backend);
  const CostModel assumed = *CostsOn(machine, StagesOf(profile));
  double measured = 0, expected = 0;
  const std::pair<Measured, const PerStage*> kinds[] = {{Measured::kF, &assumed.f},
                                                        {Measured::kB, &assumed.b},
                                                        {Measured::kBi, &assumed.bi},
                                                        {Measured::kBw, &assumed.bw}};
  for (const auto& [kind, times] : kinds)
    for (int s = 0; s < profile.job.stages(); ++s)
      if (profile.of(kind)[s] > 0) {
        measured += profile.of(kind)[s];
        expected += At(*times, s);
      }
  const double factor = expected > 0 ? measured / expected : 1;
  for (double& flops : machine.flops) flops /= factor;
  machine.name = "the profile's machine";
  machine.memory_bandwidth /= factor;
  machine.launch *= factor;
  machine.memory = 0;
  return machine;
}

Result<CostModel> CostsOn(const Profile& profile, const Program& program) {
  const Job& job = *program.job;
  if (!(profile.job.model == job.model))
    return Status::Invalid("was measured of another model (the plan's)");
  if (profile.job.dtype != job.dtype || profile.job.backend != job.backend)
    return Status::Invalid(fmt::format("was measured with {} on {}, the plan has {} on {}",
                                       NameOf(profile.job.dtype), NameOf(profile.job.backend),
                                       NameOf(job.dtype), NameOf(job.backend)));
  Machine machine = Assumed(job.backend);
  const Factors factors = FactorsOf(profile, *CostsOn(machine, StagesOf(profile)));
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
      PerByte(profile, Measured::kComm, [](const StageLayout& l) { return l.act_bytes; });
  const double step =
      PerByte(profile, Measured::kStep, [](const StageLayout& l) { return l.weights_bytes; });
  const double reduce =
      PerByte(profile, Measured::kReduce, [](const StageLayout& l) { return l.wgrad_bytes; });
  const std::vector<double> shares = program.Shares();
  for (int s = 0; s < program.stages; ++s) {
    const StageLayout layout = LayoutStage(job, s);
    if (message > 0 && !layout.last)
      costs->comm[s] = message * static_cast<double>(layout.act_bytes);
    if (step > 0) costs->step[s] = step * static_cast<double>(layout.weights_bytes) / shares[s];
    if (reduce > 0) costs->reduce[s] = reduce * static_cast<double>(layout.wgrad_bytes) / shares[s];
  }
  if (!SameStages(profile.job, job)) return costs;
  const auto take = [&](Measured kind, PerStage& values, bool divided) {
    for (int s = 0; s < program.stages; ++s)
      if (const double seconds = profile.of(kind)[s]; seconds >= 0)
        values[s] = seconds / (divided ? shares[s] : 1);
  };
  take(Measured::kF, costs->f, true);
  take(Measured::kR, costs->r, true);
  take(Measured::kBi, costs->bi, true);
  take(Measured::kBw, costs->bw, true);
  for (int s = 0; s < program.stages; ++s)
    if (profile.of(Measured::kBi)[s] >= 0 && profile.of(Measured::kBw)[s] >= 0)
      costs->b[s] = costs->bi[s] + costs->bw[s];
  take(Measured::kB, costs->b, true);
  take(Measured::kStep, costs->step, true);
  take(Measured::kComm, costs->comm, false);
  return costs;
}

Result<CostModel> CostsOn(const PriceSource& source, const Program& program) {
  if (source.machine) return CostsOn(*source.machine, program);
  auto costs = CostsOn(*source.profile, program);
  return costs.ok() ? costs : costs.status().In("--costs: " + source.name);
}

}  // namespace pp
