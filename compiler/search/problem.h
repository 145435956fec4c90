// A schedule as the search sees it: numbers, no instructions.
//
// A *cell* is one micro-batch on one stage. Each cell has up to four *tasks*: forward,
// recompute, backward (its input half, where it is split) and weight half. A *plan* is the
// order of each device's tasks, and which cells drop their activation after the forward
// and recompute it before the backward. When each task runs follows from the order
// (clock.h), and so does the memory, from the order of one list alone (ledger.h).
#pragma once

#include <cstdint>
#include <vector>

#include "schema/program.h"
#include "schema/semantics/cost_model.h"

namespace pp::search {

using Task = int32_t;  // 4 * cell + Part

constexpr Task MakeTask(int cell, Part part) { return 4 * cell + static_cast<int>(part); }
constexpr int CellOf(Task task) { return task >> 2; }
constexpr Part PartOf(Task task) { return static_cast<Part>(task & 3); }

// What one micro-batch of a stage holds on its device, in the limit's unit times kMemoryScale, from
// the start of each instruction to that of the next; nothing after the end of the last one.
struct Held {
  int64_t forward = 0;          // after FW
  int64_t dropped = 0;          // after CFW
  int64_t recomputed = 0;       // after RE
  int64_t input_half = 0;       // after FW and BW_input
  int64_t recomputed_half = 0;  // after RE and BW_input
};

// The limit, and what counts towards it.
struct MemoryModel {
  std::vector<Held> held;      // stage after stage, of each the shapes of its micro-batches
  std::vector<int64_t> limit;  // by device
  double unit = 1;             // of one step of these numbers, for messages
};

// In activations of a micro-batch of a whole device, the largest one where they differ: FW and RE
// hold 1/V until the end of BW or BW_weight, CFW `in` of the costs. `limits`: one for all devices,
// or one for each.
MemoryModel ActivationMemory(const Program& program, const CostModel& costs,
                             const std::vector<double>& limits);

struct Plan {
  std::vector<std::vector<Task>> lists;  // by device
  std::vector<uint8_t> dropped;          // by cell: 1 if it has a recompute
};

struct Problem {
  int devices = 0, stages = 0, micros = 0, pipes = 1;
  std::vector<int> device;   // by cell
  std::vector<int> held_of;  // by cell: which of memory.held
  // By cell: the gradient that it adds to, stage * pipes + pipe. Those of one keep their order.
  std::vector<int> sum;
  std::vector<uint8_t> split;  // by cell: whether the backward has two halves
  std::vector<double> time;    // by task
  std::vector<Task> source;    // by task: the one whose result it takes from another stage; or -1
  std::vector<Task> sink;      // by task: the one that takes its result; or -1
  std::vector<double> lag;     // by task: minimum time from its source's end to its own start; a
                               // message never waits for another one on its channel
  // By device: what is added to the end of its last task. The makespan is the latest of these sums.
  std::vector<double> after;
  bool period = false;  // see AimAtPeriod
  double lead = 0;      // of the makespan: what does not count
  double tiny = 0;      // a difference of times that may be rounding
  MemoryModel memory;

  int cells() const { return stages * micros; }
  int Cell(int stage, int micro) const { return stage * micros + micro; }
  int StageOf(int cell) const { return cell / micros; }
  int MicroOf(int cell) const { return cell % micros; }
  const Held& HeldBy(int cell) const { return memory.held[held_of[cell]]; }
  // Whether the task adds to its cell's gradient: a weight half, or a backward that is not split.
  bool AddsToSum(Task task) const {
    return PartOf(task) == Part::kWeight ||
           (PartOf(task) == Part::kBackward && !split[CellOf(task)]);
  }
  double Time(int cell, Part part) const { return time[MakeTask(cell, part)]; }
  double MeanTime() const;  // of a task
};

// REQUIRES: `program` is a verified compute-only one without prologue and epilogue. WAITs
// are left out.
Problem MakeProblem(const Program& program, const CostModel& costs, MemoryModel memory);
// For the time from step to step instead of one step's: a device's step lasts from when its first
// forward could run to the end of its last task, as no other device has to be over before its next
// one. The longest such time, which the schedule's period is at most, is the makespan less `lead`.
//
//   d0 | F0 F1 .. B0 F2 B1 .. B2 F0     after 1, lead 1: the makespan is d1's end, or d0's and 1
//   d1 |    F0 B0 F1 B1 F2 B2    F0     after 0
void AimAtPeriod(Problem& problem);
// The program's order of the problem's tasks. Where only one of the two splits a backward, a whole
// one is where the input half is, and two halves are side by side.
Plan MakePlan(const Program& program, const Problem& problem);
// Gives the program the plan's lists. WAITs, marks for reductions and overlaps are dropped: they
// belong to the old order.
void SetPlan(const Problem& problem, const Plan& plan, Program& program);

}  // namespace pp::search
