// The table of passes. To add one: a file under passes/, a declaration in pass.h, a row
// here.
#include "compiler/pass.h"

namespace pp {
namespace {

// Mario's four come first.
constexpr Pass kPasses[] = {
    {"apply-checkpoint", "forwards keep only their input and are run again before the backward",
     false, Depth::kSchedule, ApplyCheckpoint},
    {"overlap-recompute", "recomputes run before the wait for their gradient", false,
     Depth::kSchedule, OverlapRecompute},
    {"remove-redundancy", "a forward whose recompute follows immediately is made plain", false,
     Depth::kSchedule, RemoveRedundancy},
    {"prepose-forward", "checkpointed forwards move into earlier bubbles", false, Depth::kSchedule,
     PreposeForward},
    {"split-backward", "backwards in two halves; the weight halves fill bubbles", false,
     Depth::kSchedule, SplitBackward},
    {"fit-memory", "the fastest order and choice of recomputes within --memory-limit", false,
     Depth::kSchedule, FitMemory},
    {"reduce-gradients", "sums over copies and tied embeddings, gradient norm, optimizer step",
     true, Depth::kSchedule, ReduceGradients},
    {"insert-comm", "messages between devices, asynchronous or blocking", true, Depth::kLists,
     InsertComm},
    {"plan-memory", "an offset for every value", true, Depth::kPlan, PlanMemory},
    {"add-evaluation", "with a model: only the forwards of one batch, for its loss", true,
     Depth::kPlan, AddEvaluation},
};

}  // namespace

std::span<const Pass> Passes() { return kPasses; }
std::span<const Pass> MarioPasses() { return Passes().first(4); }

}  // namespace pp
