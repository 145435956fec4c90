#include "runtime/plan/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/comm/clock.h"
#include "schema/text.h"

namespace pp {

Interpreter::Interpreter(const Args& args)
    : args_(args),
      queue_(args.device->compute()),
      norm_blocks_(NormBlocks(*args.program->job)),
      tokens_(args.program->job->most_tokens()),
      documents_(*args.program->job, args.batches, args.list->documents) {
  for (StepResult& result : results_) {
    result.losses.resize(args.program->microbatches);
    result.made_by.resize(args.program->microbatches);
  }
}

StepResult& Interpreter::ResultOf(int64_t step) {
  StepResult& result = results_[step % kResults];
  if (result.step == step) return result;
  result.step = step;
  result.norm = 0;
  result.scaling = {};
  std::fill(result.losses.begin(), result.losses.end(), 0);
  std::fill(result.made_by.begin(), result.made_by.end(), -1);
  return result;
}

Status Interpreter::Run(const Iteration& iteration) {
  const double processor = ThreadSeconds();
  // The one that ends here.
  const int64_t step = iteration.number + iteration.others - (args_.list->overlaps ? 1 : 0);
  if (step > 0) queue_.Stamp(&ResultOf(step).begin_seconds);
  args_.lanes->Begin(iteration);
  documents_.Forget();
  next_freed_ = 0;
  for (const int32_t index : args_.list->compute) {
    if (args_.stop->load(std::memory_order_relaxed)) return {};
    if (!args_.list->Executes(index, iteration.part)) {
      args_.lanes->Passed(index, queue_.last());
      continue;
    }
    current_.store(index, std::memory_order_relaxed);
    const Status status = ExecuteRecorded(index, iteration);
    if (args_.stop->load(std::memory_order_relaxed)) return {};
    if (!status.ok())
      return status.In(fmt::format("step {}, '{}' (instruction {})",
                                   args_.list->StepOf(index, iteration),
                                   ToText(args_.list->list[index]), index));
    Drop(index);
    args_.lanes->Passed(index, queue_.last());
    executed_.store(executed_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  if (step > 0) ResultOf(step).end = queue_.Stamp(&ResultOf(step).end_seconds);
  time_.own += ThreadSeconds() - processor;
  time_.instructions += static_cast<int64_t>(args_.list->list.size());
  return {};
}

// Blocking messages are recorded by their lane.
Status Interpreter::ExecuteRecorded(int index, const Iteration& iteration) {
  Recorder::Times* times = nullptr;
  if (args_.recorder != nullptr && Info(args_.list->list[index].op).lane == Lane::kCompute)
    times = args_.recorder->Add(index, args_.list->StepOf(index, iteration));
  if (times != nullptr) queue_.Stamp(&times->start);
  Status status = Execute(index, iteration);
  if (times != nullptr) queue_.Stamp(&times->end);
  return status;
}

void Interpreter::Await(int index, int64_t iteration) {
  if (args_.lanes->Over(index, iteration)) return;
  const double begin = SteadySeconds();
  args_.lanes->Await(index, iteration);
  time_.waiting += SteadySeconds() - begin;
}

Status Interpreter::Execute(int index, const Iteration& iteration) {
  const Instruction& i = args_.list->list[index];
  if (Info(i.op).lane == Lane::kReduce) return {};  // only started, by its lane
  if (i.op == Op::kLoad)
    return Load(args_.list->calls[index], args_.list->StepOf(index, iteration));
  if (i.op == Op::kWait) {
    const Dependence& after = args_.list->waits_for[index];
    Await(after.index, iteration.number + after.body);
  } else if (IsMessage(i)) {
    // Only with blocking sends: both ends wait for each other. The lane must see that this one has
    // come.
    Await(index, iteration.number);
  } else {
    return Compute(index, iteration);
  }
  return {};
}

// Tokens come from the host, for any device.
Status Interpreter::Load(const StageCall& call, int64_t step) {
  const int64_t bytes =
      args_.batches->ExtentOf(call.micro).all() * static_cast<int64_t>(sizeof(int32_t));
  if (call.tokens != nullptr) {
    PP_RETURN_IF_ERROR(args_.batches->Inputs(step, args_.replica, call.micro, tokens_.data()));
    queue_.CopyIn(call.tokens, tokens_.data(), bytes);
  }
  if (call.targets != nullptr) {
    PP_RETURN_IF_ERROR(args_.batches->Targets(step, args_.replica, call.micro, tokens_.data()));
    queue_.CopyIn(call.targets, tokens_.data(), bytes);
  }
  return {};
}

Status Interpreter::MakeCall(int index, const Iteration& iteration, StageCall* call) const {
  const BoundList& list = *args_.list;
  *call = list.calls[index];
  call->step = list.StepOf(index, iteration);
  const int64_t age = std::max<int64_t>(0, list.list[index].version);
  const int32_t used = list.SlotOf(index, iteration, age);
  if (call->op == Op::kStep || call->micro >= 0) {
    const Result<double> per_token = args_.batches->PerToken(call->step);
    PP_RETURN_IF_ERROR(per_token.status());
    call->per_token = *per_token;
  }
  if (call->op == Op::kStep) {
    call->update = list.Updates(index, iteration) + 1;
    call->weights_old += used * list.weights_bytes[index];
    list.UseSlot(index, static_cast<int32_t>(call->update % list.versions[index]), call);
    // A step without targets makes no update, but the next version of the weights.
    const Result<int64_t> empty = args_.batches->EmptySteps(call->step);
    PP_RETURN_IF_ERROR(empty.status());
    // The optimizer counts steps of the whole training.
    call->step += args_.steps_before;
    call->update += args_.updates_before - *empty * list.steps[index];
  } else {
    list.UseSlot(index, used, call);
  }
  if (call->micro < 0) return {};
  call->first_sequence = args_.batches->FirstSequence(call->step, args_.replica, call->micro);
  const Draw draw = args_.batches->DrawAt(call->step);
  call->draw_row = draw.row;
  call->draw_number = draw.number;
  call->temperature = draw.temperature;
  return {};
}

Status Interpreter::Compute(int index, const Iteration& iteration) {
  StageCall call;
  PP_RETURN_IF_ERROR(MakeCall(index, iteration, &call));
  if (call.micro >= 0)
    PP_RETURN_IF_ERROR(documents_.Bring(call.step, args_.replica, call.micro, &queue_, &call));
  queue_.Submit(*args_.executor, call);
  const bool forward =
      call.op == Op::kForward || call.op == Op::kForwardDrop || call.op == Op::kEvaluate;
  StepResult& result = ResultOf(args_.list->StepOf(index, iteration));
  if (forward && call.loss != nullptr) {
    queue_.CopyOut(&result.losses[call.micro], call.loss, sizeof(double));
    result.made_by[call.micro] = index;
  }
  if (call.op == Op::kStep && call.norm != nullptr)
    queue_.CopyOut(&result.norm, call.norm + norm_blocks_, sizeof(double));
  if (call.op == Op::kStep && call.scaling != nullptr)
    queue_.CopyOut(&result.scaling, call.scaling, sizeof(kernels::LossScale));
  return {};
}

void Interpreter::Drop(int index) {
  const std::vector<Freed>& freed = args_.list->freed;
  while (next_freed_ < freed.size() && freed[next_freed_].index < index) ++next_freed_;
  for (; next_freed_ < freed.size() && freed[next_freed_].index == index; ++next_freed_)
    queue_.Drop(args_.device->at(freed[next_freed_].offset), freed[next_freed_].bytes);
}

}  // namespace pp
