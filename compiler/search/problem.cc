#include "compiler/search/problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pp::search {
namespace {

// Fractions of an activation are counted in integers, so that ten times 0.1 is 1.
constexpr double kScale = 1e12;
// Thirds do not add up to 1: this much over the limit is within it.
constexpr double kTolerance = 1e-6;
// Of a mean task's time.
constexpr double kTinyShare = 1e-9;
// More activations than this count as no limit; their number still fits.
constexpr double kMostLimit = 8e6, kMostInput = 100;

// A task's result goes to the next stage's forward or the previous one's backward.
void Link(Problem& problem, int from_cell, int to_cell, Part part, double lag) {
  const Task from = MakeTask(from_cell, part), to = MakeTask(to_cell, part);
  problem.sink[from] = to;
  problem.source[to] = from;
  if (problem.device[from_cell] != problem.device[to_cell]) problem.lag[to] = lag;
}

}  // namespace

MemoryModel ActivationMemory(const Program& program, const CostModel& costs,
                             const std::vector<double>& limits) {
  MemoryModel memory{.unit = 1 / kScale};
  const std::vector<double> shares = program.Shares();
  for (int s = 0; s < program.stages; ++s) {
    for (int shape = 0; shape < program.shapes(); ++shape) {
      const double size = program.SizeOf(shape);
      const int64_t full = std::llround(kScale * shares[s] * size);
      const int64_t input = std::llround(kScale * std::min(At(costs.in, s) * size, kMostInput));
      memory.held.push_back({full, input, full + input, full, full + input});
    }
  }
  for (int d = 0; d < program.devices; ++d)
    memory.limit.push_back(std::llround(kScale * std::min(At(limits, d) + kTolerance, kMostLimit)));
  return memory;
}

Problem MakeProblem(const Program& program, const CostModel& costs, MemoryModel memory) {
  const int pipes = static_cast<int>(program.pipes.size());
  Problem problem{program.devices, program.stages, program.microbatches, pipes};
  problem.memory = std::move(memory);
  const int cells = problem.cells();
  problem.device.resize(cells);
  problem.held_of.resize(cells);
  problem.sum.resize(cells);
  problem.split.assign(cells, 0);
  problem.time.assign(4 * cells, 0);
  problem.source.assign(4 * cells, -1);
  problem.sink.assign(4 * cells, -1);
  problem.lag.assign(4 * cells, 0);
  problem.after.assign(problem.devices, 0);
  for (const DeviceList& list : program.lists)
    for (const Instruction& i : list.body)
      if (i.op == Op::kBackwardWeight) problem.split[problem.Cell(i.stage, i.micro)] = 1;

  const Durations durations(costs, program);
  for (int s = 0; s < problem.stages; ++s)
    for (int m = 0; m < problem.micros; ++m) {
      const auto time = [&](Op op) { return durations({.op = op, .stage = s, .micro = m}); };
      const int cell = problem.Cell(s, m), pipe = program.pipe_of[m];
      problem.held_of[cell] = s * program.shapes() + program.ShapeOf(m);
      problem.device[cell] = program.pipes[pipe].device_of[s];
      problem.sum[cell] = s * pipes + pipe;
      const bool split = problem.split[cell] != 0;
      problem.time[MakeTask(cell, Part::kForward)] = time(Op::kForward);
      problem.time[MakeTask(cell, Part::kRecompute)] = time(Op::kRecompute);
      problem.time[MakeTask(cell, Part::kBackward)] =
          time(split ? Op::kBackwardInput : Op::kBackward);
      problem.time[MakeTask(cell, Part::kWeight)] = split ? time(Op::kBackwardWeight) : 0;
      if (s == 0) continue;
      const int below = problem.Cell(s - 1, m);
      const auto lag = [&](Op op) {
        const Instruction send{.op = op, .stage = s - 1, .micro = m};
        return durations(send) + durations.Latency(send);
      };
      Link(problem, below, cell, Part::kForward, lag(Op::kSendAct));
      Link(problem, cell, below, Part::kBackward, lag(Op::kSendGrad));
    }
  problem.tiny = kTinyShare * problem.MeanTime();
  return problem;
}

double Problem::MeanTime() const {
  return std::accumulate(time.begin(), time.end(), 0.0) / static_cast<double>(time.size());
}

void AimAtPeriod(Problem& problem) {
  std::vector<double> first(problem.devices, HUGE_VAL);
  for (int m = 0; m < problem.micros; ++m) {
    double arrival = 0;
    for (int s = 0; s < problem.stages; ++s) {
      const int cell = problem.Cell(s, m);
      const Task forward = MakeTask(cell, Part::kForward);
      arrival += problem.lag[forward];
      double& own = first[problem.device[cell]];
      own = std::min(own, arrival);
      arrival += problem.time[forward];
    }
  }
  problem.period = true;
  for (const double time : first)
    if (time != HUGE_VAL) problem.lead = std::max(problem.lead, time);
  for (int d = 0; d < problem.devices; ++d)
    if (first[d] != HUGE_VAL) problem.after[d] = problem.lead - first[d];
}

Plan MakePlan(const Program& program, const Problem& problem) {
  Plan plan;
  plan.dropped.assign(problem.cells(), 0);
  for (const DeviceList& list : program.lists) {
    auto& tasks = plan.lists.emplace_back();
    for (const Instruction& i : list.body) {
      const auto part = Info(i.op).part;
      if (!part) continue;
      const int cell = problem.Cell(i.stage, i.micro);
      const bool split = problem.split[cell] != 0;
      if (*part != Part::kWeight || split) tasks.push_back(MakeTask(cell, *part));
      if (i.op == Op::kBackward && split) tasks.push_back(MakeTask(cell, Part::kWeight));
      if (i.op == Op::kForwardDrop) plan.dropped[cell] = 1;
    }
  }
  return plan;
}

void SetPlan(const Problem& problem, const Plan& plan, Program& program) {
  // Everything but stage and micro-batch of an instruction is kept.
  std::vector<Instruction> before(4 * problem.cells());
  for (const DeviceList& list : program.lists)
    for (const Instruction& i : list.body)
      if (const auto part = Info(i.op).part; part && part != Part::kRecompute)
        before[MakeTask(problem.Cell(i.stage, i.micro), *part)] = i;
  for (int d = 0; d < problem.devices; ++d) {
    auto& body = program.lists[d].body;
    body.clear();
    for (Task task : plan.lists[d]) {
      const int cell = CellOf(task), stage = problem.StageOf(cell), micro = problem.MicroOf(cell);
      const Task same = PartOf(task) == Part::kRecompute ? MakeTask(cell, Part::kForward) : task;
      Instruction instruction = before[same];
      instruction.overlap = false;
      if (PartOf(task) == Part::kForward) {
        if (stage == 0 || stage == problem.stages - 1)
          body.push_back({.op = Op::kLoad, .stage = stage, .micro = micro});
        instruction.op = plan.dropped[cell] ? Op::kForwardDrop : Op::kForward;
      }
      if (PartOf(task) == Part::kRecompute) instruction.op = Op::kRecompute;
      body.push_back(instruction);
    }
  }
}

}  // namespace pp::search
