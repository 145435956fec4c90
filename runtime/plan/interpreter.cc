#include "runtime/plan/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numbers>

#include "schema/text.h"

namespace pp {
namespace {

// Processor time of the calling thread.
double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

double LearningRate(const OptimizerOptions& options, int64_t step) {
  const auto done = static_cast<double>(step - 1);
  const auto warmup = static_cast<double>(options.warmup_steps);
  if (done < warmup) return options.learning_rate * static_cast<double>(step) / warmup;
  if (!options.cosine) return options.learning_rate;
  const double part = (done - warmup) / std::max(1.0, static_cast<double>(options.steps) - warmup);
  const double height = 0.5 * (1 + std::cos(std::numbers::pi * std::min(part, 1.0)));
  return options.min_learning_rate + height * (options.learning_rate - options.min_learning_rate);
}

Interpreter::Interpreter(const Args& args)
    : args_(args), norm_block_count_(NormBlocks(*args.program->job)) {}

Status Interpreter::Run(int64_t step) {
  const double begin = Now(), cpu_begin = ThreadSeconds(), kernel_cpu_begin = kernel_cpu_;
  args_.lanes->Begin(step);
  for (const int32_t index : args_.list->compute) {
    if (args_.stop->load(std::memory_order_relaxed)) return {};
    current_.store(index, std::memory_order_relaxed);
    const Status status = ExecuteTimed(index, step);
    if (args_.stop->load(std::memory_order_relaxed)) return {};
    if (!status.ok()) return Explain(status, index, step);
    args_.lanes->Passed(index);
    executed_.store(executed_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  const double drained = Now();
  Sleep([&] { return args_.lanes->finished(); });
  const double end = Now();
  time_.waiting += end - drained;
  time_.total += end - begin;
  time_.own += ThreadSeconds() - cpu_begin - (kernel_cpu_ - kernel_cpu_begin);
  time_.instructions += static_cast<int64_t>(args_.list->list.size());
  return {};
}

Status Interpreter::ExecuteTimed(int index, int64_t step) {
  // A WAIT, or a blocking message.
  const bool waits = args_.list->waits_for[index] >= 0 || args_.list->data[index] != nullptr;
  const double start = Now(), cpu_start = waits ? 0 : ThreadSeconds();
  Status status = Execute(index, step);
  if (!waits) kernel_cpu_ += ThreadSeconds() - cpu_start;
  const double end = Now();
  (waits ? time_.waiting : time_.kernels) += end - start;
  // Blocking messages are on the record of their lane.
  const bool mine = Info(args_.list->list[index].op).lane == Lane::kCompute;
  if (args_.recorder != nullptr && mine) args_.recorder->Add(index, step, start, end);
  return status;
}

Status Interpreter::Explain(const Status& status, int index, int64_t step) const {
  std::string text = fmt::format("step {}: {} ('{}', instruction {})", step, status.message(),
                                 ToText(args_.list->list[index]), index);
  return status.code() == Code::kInvalid ? Status::Invalid(std::move(text))
                                         : Status::Failed(std::move(text));
}

Status Interpreter::Execute(int index, int64_t step) {
  const Instruction& instruction = args_.list->list[index];
  const Addresses& at = args_.list->addresses[index];
  Backend& backend = *args_.backend;
  switch (instruction.op) {
    case Op::kLoad:
      return backend.Load(at, step);
    case Op::kForward:
      backend.Forward(at, step);
      return CheckLoss(at);
    case Op::kForwardDrop:
      backend.ForwardDrop(at, step);
      return CheckLoss(at);
    case Op::kRecompute:
      backend.Recompute(at, step);
      return {};
    case Op::kBackward:
      backend.Backward(at, step);
      return {};
    case Op::kBackwardInput:
      backend.BackwardInput(at, step);
      return {};
    case Op::kBackwardWeight:
      backend.BackwardWeight(at, step);
      return {};
    case Op::kNormGrad:
      backend.NormGrad(at);
      return {};
    case Op::kStep:
      return StepStage(at, step);
    case Op::kWait: {
      const int target = args_.list->waits_for[index];
      Sleep([&] { return args_.lanes->Over(target); });
      return {};
    }
    // Here only with blocking sends: the two ends meet.
    case Op::kSendAct:
    case Op::kRecvAct:
    case Op::kSendGrad:
    case Op::kRecvGrad:
      Sleep([&] { return args_.lanes->Over(index); });
      return {};
    // Only started, by their lane.
    case Op::kReduceGrad:
    case Op::kScatterGrad:
    case Op::kReduceTied:
    case Op::kReduceNorm:
    case Op::kGatherWeights:
      return {};
  }
  return {};
}

template <typename Over>
void Interpreter::Sleep(const Over& over) {
  if (over()) return;
  waiting_.store(true, std::memory_order_relaxed);
  while (true) {
    const uint64_t seen = args_.bell->rings();
    if (over() || args_.stop->load()) break;
    args_.bell->Wait(seen);
  }
  waiting_.store(false, std::memory_order_relaxed);
}

Status Interpreter::CheckLoss(const Addresses& at) const {
  if (at.loss == nullptr || std::isfinite(*at.loss)) return {};
  // Without the sign that a NaN may have.
  const double loss = std::isnan(*at.loss) ? std::abs(*at.loss) : *at.loss;
  return Status::Failed(fmt::format("loss of micro-batch {} is {}", at.micro, loss));
}

Status Interpreter::StepStage(const Addresses& at, int64_t step) {
  // In model order, so that every device and every split has the same bits.
  double sum = 0;
  for (int64_t i = 0; i < norm_block_count_; ++i) sum += args_.norm_blocks[i];
  grad_norm_ = std::sqrt(sum);
  if (!std::isfinite(grad_norm_))
    return Status::Failed(fmt::format("the gradient's norm is {}", std::abs(grad_norm_)));
  const double clip = args_.optimizer.grad_clip;
  StepArgs args{.step = step, .learning_rate = LearningRate(args_.optimizer, step)};
  if (clip > 0 && grad_norm_ > clip) args.gradient_scale = clip / (grad_norm_ + 1e-6);
  args_.backend->Step(at, args);
  return {};
}

}  // namespace pp
