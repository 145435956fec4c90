#include "runtime/model/stage_model.h"

namespace pp {
namespace {

// Null stays null: not every instruction has everything.
float* Floats(std::byte* base, int64_t offset) {
  return base == nullptr ? nullptr : reinterpret_cast<float*>(base + offset);
}

std::byte* At(const StageCall& call, const Spot& place) {
  const auto in = [&](std::byte* base) { return base == nullptr ? base : base + place.offset; };
  switch (place.area) {
    case Area::kNone:
      return nullptr;
    case Area::kActBefore:
      return call.act_before;
    case Area::kAct:
      return call.act;
    case Area::kGradBefore:
      return call.grad_before;
    case Area::kGrad:
      return call.grad;
    case Area::kKept:
      return in(call.kept);
    case Area::kStash:
      return in(call.stash);
    case Area::kWork:
      return in(call.work);
    case Area::kScratch:
      return in(call.scratch);
  }
  PP_CHECK(false);
}

}  // namespace

OperatorCall StageModel::CallOf(const StageCall& call, size_t index, Keep keep,
                                Halves halves) const {
  if (started_ != nullptr) ++*started_;
  const StageOperator& placed = layout_.operators[index];
  const StageOperator::Forward& forward = placed.of(keep);
  const StageOperator::Backward& backward = placed.of(halves);
  OperatorCall result = {.index = index,
                         .placed = &placed,
                         .stage = &call,
                         .in = At(call, forward.in),
                         .stream = At(call, forward.stream),
                         .out = At(call, forward.out),
                         .all = At(call, forward.all),
                         .statistics = Floats(At(call, forward.statistics), 0),
                         .d_out = At(call, backward.d_out),
                         .d_in = At(call, backward.d_in),
                         .add = At(call, backward.add),
                         .part = Floats(At(call, backward.part), 0)};
  for (size_t i = 0; i < placed.parameters.size(); ++i) {
    const auto [weight, wgrad, rounded] = placed.parameters[i];
    result.parameters[i] = Floats(call.weights, weight);
    if (call.rounded != nullptr && rounded >= 0) result.rounded[i] = call.rounded + rounded;
    if (wgrad >= 0) result.gradients[i] = Floats(call.wgrad, wgrad);
  }
  return result;
}

void StageModel::RunForward(const StageCall& call, Run run, Keep keep) {
  for (size_t i = 0; i < layout_.operators.size(); ++i) {
    if (run == Run::kRecomputed && !layout_.operators[i].recomputed) continue;
    const bool two = operators_->TakesNext(i);
    OperatorCall one = CallOf(call, i, keep, Halves::kTogether), next;
    if (two) next = CallOf(call, ++i, keep, Halves::kTogether), one.with = &next;
    operators_->Forward(one);
    operators_->Settle();
  }
}

void StageModel::Forward(const StageCall& call) {
  // A stage in the middle without a layer.
  if (layout_.operators.empty()) operators_->Copy(call.act_before, layout_.act_bytes, call.act);
  RunForward(call, Run::kAll, Keep::kStash);
}

void StageModel::ForwardDrop(const StageCall& call) {
  if (layout_.operators.empty()) operators_->Copy(call.act_before, layout_.act_bytes, call.act);
  RunForward(call, Run::kAll, Keep::kScratch);
}

void StageModel::Recompute(const StageCall& call) {
  StageCall repeated = call;
  repeated.loss = nullptr;
  RunForward(repeated, Run::kRecomputed, Keep::kStash);
}

// The gradient with respect to the stage's output: received, or begun by the loss. It is copied
// where BW_weight will look for it, and where nothing else would write the stage's result.
void StageModel::StartFlow(const StageCall& call, Halves halves) {
  const Spot& d_stream = layout_.d_stream[static_cast<int>(halves)];
  if (layout_.last || d_stream.area == Area::kGrad) return;
  operators_->Copy(call.grad, layout_.grad_bytes, At(call, d_stream));
}

void StageModel::InputHalf(const StageCall& call, size_t index, Halves halves) {
  if (index + 1 < layout_.operators.size() && operators_->TakesPrevious(index + 1)) return;
  OperatorCall one = CallOf(call, index, Keep::kStash, halves), previous;
  if (operators_->TakesPrevious(index))
    previous = CallOf(call, index - 1, Keep::kStash, halves), one.with = &previous;
  operators_->BackwardInput(one);
}

// What the weight half reads, if the stash does not have it.
void StageModel::RecomputeInput(const StageCall& call, size_t index, Halves halves) {
  if (Saves(index)) return;
  operators_->Forward(CallOf(call, index - 1, Keep::kStash, halves));
}

bool StageModel::Saves(size_t index) const {
  return index == 0 || !layout_.operators[index - 1].remade;
}

void StageModel::WeightHalf(const StageCall& call, size_t index, Halves halves, Order order) {
  if (!layout_.operators[index].op.trains()) return;
  OperatorCall one = CallOf(call, index, Keep::kStash, halves);
  one.beside = order == Order::kBeside;
  operators_->BackwardWeight(one);
}

// Whether the weight half runs while tensor-parallel peers sum the output of the input half, and
// the input half while they gather what was recomputed.
bool StageModel::WeightsFirst(size_t index) const {
  const Operator& op = layout_.operators[index].op;
  return layout_.tp > 1 && op.kind == OperatorKind::kLinear && op.cut == Cut::kOut;
}

void StageModel::Backward(const StageCall& call) {
  constexpr Halves kHalves = Halves::kTogether;
  StartFlow(call, kHalves);
  for (size_t end = layout_.operators.size(), begin; end > 0; end = begin) {
    begin = end - 1;
    const int group = layout_.operators[begin].group;
    while (begin > 0 && layout_.operators[begin - 1].group == group) --begin;
    // What recomputes its input would overwrite that of another one.
    const auto beside = [&](size_t i) { return operators_->RunsBeside(i) && Saves(i); };
    for (size_t i = end; i-- > begin;) {
      const bool first = WeightsFirst(i) && !beside(i);
      if (beside(i)) WeightHalf(call, i, kHalves, Order::kBeside);
      if (first) RecomputeInput(call, i, kHalves);
      InputHalf(call, i, kHalves);
      if (first) WeightHalf(call, i, kHalves);
      operators_->Settle();
    }
    for (size_t i = end; i-- > begin;) {
      if (WeightsFirst(i) || beside(i)) continue;
      RecomputeInput(call, i, kHalves);
      operators_->Settle();
      WeightHalf(call, i, kHalves);
    }
    operators_->FinishWeights(call);
  }
}

void StageModel::BackwardInput(const StageCall& call) {
  StartFlow(call, Halves::kApart);
  for (size_t i = layout_.operators.size(); i-- > 0;) {
    InputHalf(call, i, Halves::kApart);
    operators_->Settle();
  }
}

void StageModel::BackwardWeight(const StageCall& call) {
  for (size_t i = layout_.operators.size(); i-- > 0;) {
    RecomputeInput(call, i, Halves::kApart);
    operators_->Settle();
    WeightHalf(call, i, Halves::kApart);
    if (i == 0 || layout_.operators[i - 1].group != layout_.operators[i].group)
      operators_->FinishWeights(call);
  }
}

}  // namespace pp
