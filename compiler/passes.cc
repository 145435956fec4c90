// The table of passes. To add one: a file under passes/, a declaration in pass.h, a row
// here.
#include <algorithm>

#include "compiler/pass.h"

namespace pp {
namespace {

// Mario's four come first.
constexpr Pass kPasses[] = {
    {"apply-checkpoint", "forwards keep only their input and are run again before the backward",
     Form::kSchedule, Form::kSchedule, ApplyCheckpoint},
    {"overlap-recompute", "recomputes run before the wait for their gradient", Form::kSchedule,
     Form::kSchedule, OverlapRecompute},
    {"remove-redundancy", "a forward whose recompute follows immediately is made plain",
     Form::kSchedule, Form::kSchedule, RemoveRedundancy},
    {"prepose-forward", "checkpointed forwards move into earlier bubbles", Form::kSchedule,
     Form::kSchedule, PreposeForward},
    {"split-backward", "backwards in two halves; the weight halves fill bubbles", Form::kSchedule,
     Form::kSchedule, SplitBackward},
    {"fit-memory", "the fastest order and choice of recomputes within --memory-limit",
     Form::kSchedule, Form::kFitted, FitMemory},
    {"reduce-gradients", "sums over copies and tied stages, gradient norm, optimizer step",
     Form::kFitted, Form::kSummed, ReduceGradients},
    {"insert-comm", "messages between devices, asynchronous or blocking", Form::kSummed,
     Form::kLists, InsertComm},
    {"add-steps", "with --batch-ramp: steps of fewer micro-batches", Form::kLists, Form::kWhole,
     AddSteps},
    {"add-evaluation", "with a model or --evaluation: only the forwards of one batch, for its loss",
     Form::kWhole, Form::kWhole, AddEvaluation},
    {"plan-memory", "an offset for every value", Form::kWhole, Form::kPlan, PlanMemory},
};

constexpr size_t FirstFrom(Form form) {
  size_t first = 0;
  while (kPasses[first].takes < std::max(form, Form::kFitted)) ++first;
  return first;
}
constexpr bool EachTakesWhatIsLeft() {
  Form form = Form::kFitted;
  for (size_t i = FirstFrom(form); i < std::size(kPasses); form = kPasses[i++].leaves)
    if (kPasses[i].takes != form) return false;
  return form == Form::kPlan;
}
static_assert(EachTakesWhatIsLeft());

}  // namespace

std::span<const Pass> Passes() { return kPasses; }
std::span<const Pass> PassesFrom(Form form) { return Passes().subspan(FirstFrom(form)); }
std::span<const Pass> MarioPasses() { return Passes().first(4); }

}  // namespace pp
