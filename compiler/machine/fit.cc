#include "compiler/machine/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "compiler/machine/costs.h"
#include "schema/model/work.h"

namespace pp {
namespace {

// What an instruction's time is a sum of.
enum Term { kProducts, kAttention, kBytes, kOperators, kTerms };
struct Row {
  std::array<double, kTerms> work{};
  double seconds = 0;

  void Add(const Operator& op, const Work& one) {
    if (one.operations == 0 && one.bytes == 0) return;
    if (one.operations == 0) work[kBytes] += one.bytes;
    work[op.kind == OperatorKind::kAttention ? kAttention : kProducts] += one.operations;
    work[kOperators] += 1;
  }
};

// The instructions that were measured.
std::vector<Row> RowsOf(const Profile& profile) {
  std::vector<Row> rows;
  for (int s = 0; s < profile.job.stages(); ++s) {
    const StageLayout layout = LayoutStage(profile.job, s);
    const auto add = [&](Measured kind, auto work_of) {
      Row row{.seconds = profile.of(kind)[s]};
      for (const StageOperator& placed : layout.operators)
        work_of(placed, WorkOf(placed.op, profile.job), row);
      if (row.seconds > 0 && row.work[kOperators] > 0) rows.push_back(row);
    };
    add(Measured::kF,
        [](const StageOperator& o, const StageWork& w, Row& row) { row.Add(o.op, w.forward); });
    add(Measured::kR, [](const StageOperator& o, const StageWork& w, Row& row) {
      if (o.again) row.Add(o.op, w.again);
    });
    add(Measured::kB, [](const StageOperator& o, const StageWork& w, Row& row) {
      row.Add(o.op, w.input);
      row.Add(o.op, w.weight);
    });
    add(Measured::kBi,
        [](const StageOperator& o, const StageWork& w, Row& row) { row.Add(o.op, w.input); });
    add(Measured::kBw,
        [](const StageOperator& o, const StageWork& w, Row& row) { row.Add(o.op, w.weight); });
  }
  return rows;
}

// Non-negative least squares of the relative errors, one coordinate after the other.
std::array<double, kTerms> Solve(const std::vector<Row>& rows) {
  constexpr int kRounds = 20'000;
  std::array<double, kTerms> rate{};
  for (int round = 0; round < kRounds; ++round)
    for (int t = 0; t < kTerms; ++t) {
      double up = 0, down = 0;
      for (const Row& row : rows) {
        double rest = row.seconds;
        for (int other = 0; other < kTerms; ++other)
          if (other != t) rest -= rate[other] * row.work[other];
        up += rest * row.work[t] / (row.seconds * row.seconds);
        down += row.work[t] * row.work[t] / (row.seconds * row.seconds);
      }
      if (down > 0) rate[t] = std::max(0.0, up / down);
    }
  return rate;
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
  const std::array<double, kTerms> rate = Solve(RowsOf(profile));
  Machine machine{.name = "the profile"};
  // A term that takes no time has no limit.
  const double product = rate[kProducts] > 0 ? 1 / rate[kProducts] : 1e24;
  const double attention = rate[kAttention] > 0 ? 1 / rate[kAttention] : 1e24;
  const double peak = std::max(product, attention);
  machine.flops.fill(peak);
  machine.product = product / peak;
  machine.attention = attention / peak;
  machine.launch = rate[kOperators];
  machine.memory_bandwidth = rate[kBytes] > 0 ? 1 / rate[kBytes] : 0;
  const double per_byte =
      PerByte(profile, Measured::kComm, [](const StageLayout& l) { return l.act_bytes; });
  machine.inside.bandwidth = per_byte > 0 ? 1 / per_byte : 0;
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
  if (RowsOf(profile).empty()) return Status::Invalid("has no forward or backward");
  const Machine machine = FitMachine(profile);
  auto costs = CostsOn(machine, program);
  if (!costs.ok()) return costs;
  // Of an optimizer's step and of reductions the machine knows nothing.
  const double step =
      PerByte(profile, Measured::kStep, [](const StageLayout& l) { return l.weights_bytes; });
  const double reduce =
      PerByte(profile, Measured::kReduce, [](const StageLayout& l) { return l.wgrad_bytes; });
  const std::vector<double> shares = program.Shares();
  for (int s = 0; s < program.stages; ++s) {
    const StageLayout layout = LayoutStage(job, s);
    costs->step[s] = step * static_cast<double>(layout.weights_bytes) / shares[s];
    costs->reduce[s] = reduce * static_cast<double>(layout.wgrad_bytes) / shares[s];
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
