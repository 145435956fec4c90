// A pipeline stage, executed from its list of operators (schema/model/operators.h).
//
// The places of everything are StageLayout's (schema/model/layout.h); the caller says where each
// value of a micro-batch begins. Nothing here allocates memory after construction, and every result
// has the same bits whatever the split into stages, the order of micro-batches between the calls,
// or the number of threads. Gradients are sums over micro-batches in the order of the calls.
//
//   Forward = ForwardDrop + Recompute           bit for bit
//   Backward = BackwardInput + BackwardWeight   bit for bit
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/device/stage_call.h"
#include "schema/model/layout.h"

namespace pp {

// One operator as its kernels get it. What it does not have is null. Rows are tokens; elements per
// row and places are Operator's and StageOperator's. Activations and gradients have the job's
// dtype.
struct OperatorCall {
  size_t index = 0;  // among the operators of the stage
  const StageOperator* placed = nullptr;
  const StageCall* stage = nullptr;
  const float* parameters[kMostParameters] = {};
  // The same as the device's products take them, if not in fp32.
  const std::byte* rounded[kMostParameters] = {};
  // Of the parameters; = or += as stage->accumulate says. Frozen ones have none.
  float* gradients[kMostParameters] = {};

  std::byte *in = nullptr, *stream = nullptr, *out = nullptr, *all = nullptr;
  float* statistics = nullptr;
  std::byte *d_out = nullptr, *d_in = nullptr, *add = nullptr;
  float* part = nullptr;

  bool beside = false;  // of BackwardWeight: see Operators::RunsBeside

  // The operator that is carried out together with this one, if the Operators say so.
  const OperatorCall* with = nullptr;
};

// The kernels of all operators, on one kind of device.
class Operators {
 public:
  virtual ~Operators() = default;

  // Whether Forward of an operator also carries out the one after it, and BackwardInput the one
  // before it. Forward of the other one can still be called separately, to recompute what was not
  // saved.
  virtual bool TakesNext(size_t) const { return false; }
  virtual bool TakesPrevious(size_t) const { return false; }

  // out and statistics.
  virtual void Forward(const OperatorCall& call) = 0;
  // d_in, to which a Norm adds `add`; and a Norm's part.
  virtual void BackwardInput(const OperatorCall& call) = 0;
  // With tensor-parallel peers, the results of these two may be complete only now.
  virtual void Settle() = 0;
  // The gradients; they may be complete only after FinishWeights, which comes at the end of each
  // group of operators. What they are computed from stays until then.
  virtual void BackwardWeight(const OperatorCall& call) = 0;
  // Whether a weight half may run while the input halves of its group do: then it is called before
  // the operator's own input half, and OperatorCall::beside is set.
  virtual bool RunsBeside(size_t) const { return false; }
  virtual void FinishWeights(const StageCall& call) = 0;
  virtual void Copy(const std::byte* from, int64_t bytes, std::byte* to) = 0;
};

class StageModel {
 public:
  StageModel(StageLayout layout, std::unique_ptr<Operators> operators)
      : layout_(std::move(layout)), operators_(std::move(operators)) {}

  const StageLayout& layout() const { return layout_; }
  // `started` counts the operators that it starts, for whoever watches its progress; it outlives
  // it.
  void CountIn(std::atomic<int64_t>* started) { started_ = started; }

  // act(s,m), or the loss in the last stage, and stash(s,m).
  void Forward(const StageCall& call);
  // The same, but of the stash only what is kept.
  void ForwardDrop(const StageCall& call);
  // The rest of the stash.
  void Recompute(const StageCall& call);

  // grad(s-1,m), and wgrad(s) = or += this micro-batch's part.
  void Backward(const StageCall& call);
  // grad(s-1,m) and work(s,m).
  void BackwardInput(const StageCall& call);
  // wgrad(s) = or += this micro-batch's part.
  void BackwardWeight(const StageCall& call);

 private:
  OperatorCall CallOf(const StageCall& call, size_t index, Keep keep, Halves halves) const;
  enum class Run : uint8_t { kAll, kRecomputed };
  void RunForward(const StageCall& call, Run run, Keep keep);
  void StartFlow(const StageCall& call, Halves halves);
  void InputHalf(const StageCall& call, size_t index, Halves halves);
  void RecomputeInput(const StageCall& call, size_t index, Halves halves);
  enum class Order : uint8_t { kAfter, kBeside };
  void WeightHalf(const StageCall& call, size_t index, Halves halves, Order order = Order::kAfter);
  bool Saves(size_t index) const;
  bool WeightsFirst(size_t index) const;

  StageLayout layout_;
  std::unique_ptr<Operators> operators_;
  std::atomic<int64_t>* started_ = nullptr;  // may be null
};

}  // namespace pp
