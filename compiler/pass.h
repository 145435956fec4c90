// A pass changes a program. The head of its file shows before and after in the text form.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "compiler/memory_limit.h"
#include "compiler/search/method.h"
#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"
#include "schema/semantics/walk.h"

namespace pp {

// When a stage's gradients are summed over its copies: as soon as they are complete, or after all
// backwards.
enum class Reduce { kEarly, kLate };

// What is made short: a step from its first to its last instruction, or the time from step to step
// where a device goes on as soon as its own list is done.
enum class Objective { kStep, kPeriod };

// What fit-memory found.
struct FitReport {
  double makespan = 0;  // or the longest time from a device's first to its last instruction: the
                        // schedule's period; the lowered plan's may be a little longer
  // No plan within the limit is faster. None if overlapping a forward with a backward saves time,
  // which the bound does not model.
  std::optional<double> lower_bound;
  std::vector<double> peaks;  // by device, in the limit's unit
  bool whole = true;          // STEP and reductions, which both values leave out, take no time
};

// What fit-memory is asked for.
struct MemoryFit {
  MemoryLimit limit;
  Objective objective = Objective::kStep;
  double search_seconds = 0;                      // 0: a fixed amount of work
  std::function<void(double makespan)> progress;  // with each better plan
  std::function<void(const FitReport&)> report;   // at the end
  bool quick = false;                             // no local search
  // Other schedules of the same stages on the same devices, for the search to start from.
  std::vector<Program> related = {};
  search::Method without = search::Method::kNone;  // of the search's
};

// Each device's compute instructions with SEND and RECV between them.
using GivenComm = std::vector<std::vector<Instruction>>;

struct PassContext {
  CostModel costs;
  Reduce reduce = Reduce::kEarly;
  MemoryFit fit = {};
  std::vector<Program> steps = {};  // of fewer micro-batches, lowered to lists, for add-steps
  const GivenComm* comm = nullptr;  // the user's order of the messages; null: insert-comm finds one
  bool proves = true;               // after each pass
  bool evaluates = false;           // an evaluation also without a model
};

// What passes make of a program, one after the other.
enum class Form : uint8_t {
  kSchedule,  // compute instructions
  kFitted,    // the same, in an order and with recomputes that nothing may change any more
  kSummed,    // with reductions and steps
  kLists,     // with messages
  kWhole,     // the same, and routines beside them
  kPlan,      // with memory
};
// How a program of that form is verified.
inline Depth DepthOf(Form form) {
  if (form >= Form::kPlan) return Depth::kPlan;
  return form >= Form::kLists ? Depth::kLists : Depth::kSchedule;
}

// A row of the table of passes.
struct Pass {
  std::string_view name;
  std::string_view summary;
  Form takes;  // or a form before it; those that take more than a schedule run for every plan
  Form leaves;
  Status (*run)(Program&, const PassContext&);
};

std::span<const Pass> Passes();
// What makes a plan of such a program: each takes what the one before it leaves.
std::span<const Pass> PassesFrom(Form form);
// The four of Mario (Liu et al., 2025), in its order.
std::span<const Pass> MarioPasses();

// Each in its file under passes/.
Status ApplyCheckpoint(Program& program, const PassContext& context);
Status OverlapRecompute(Program& program, const PassContext& context);
Status RemoveRedundancy(Program& program, const PassContext& context);
Status PreposeForward(Program& program, const PassContext& context);
Status SplitBackward(Program& program, const PassContext& context);
Status FitMemory(Program& program, const PassContext& context);
Status ReduceGradients(Program& program, const PassContext& context);
Status InsertComm(Program& program, const PassContext& context);
Status KeepComm(Program& program, const PassContext& context);  // called by insert-comm
Status PlanMemory(Program& program, const PassContext& context);
Status AddSteps(Program& program, const PassContext& context);
Status AddEvaluation(Program& program, const PassContext& context);

}  // namespace pp
