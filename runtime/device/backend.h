// What computes. The interpreter says which instruction and where its values lie; a
// backend knows how. Nothing here takes memory once it is made.
#pragma once

#include <cstddef>
#include <cstdint>

#include "schema/status.h"

namespace pp {

// What one compute instruction works on: the addresses of its values and of the states of
// its stage. Those that it does not have are null.
struct Addresses {
  int stage = -1;
  int micro = -1;
  // The first micro-batch of a step sets wgrad, the others add.
  bool first = false;

  std::byte* tokens = nullptr;       // the first stage's input
  std::byte* targets = nullptr;      // last stage
  std::byte* act_before = nullptr;   // act(s-1,m): the other stages' input
  std::byte* act = nullptr;          // act(s,m)
  std::byte* stash = nullptr;        // stash(s,m)
  std::byte* grad = nullptr;         // grad(s,m)
  std::byte* grad_before = nullptr;  // grad(s-1,m)
  std::byte* work = nullptr;         // work(s,m)

  std::byte* weights = nullptr;
  std::byte* wgrad = nullptr;
  std::byte* optimizer = nullptr;
  std::byte* scratch = nullptr;
  double* loss = nullptr;  // of this micro-batch
  double* norm = nullptr;  // the first block of this stage
};

// One optimizer step.
struct StepArgs {
  int64_t step = 1;  // counts from 1
  double learning_rate = 0;
  double gradient_scale = 1;  // clipping
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Before the first step, for each stage of the device: new or loaded weights, and moments
  // of zero.
  virtual Status Init(const Addresses& stage) = 0;

  // The instructions of the same names. `step` counts from 1.
  virtual Status Load(const Addresses& at, int64_t step) = 0;
  virtual void Forward(const Addresses& at, int64_t step) = 0;
  virtual void ForwardDrop(const Addresses& at, int64_t step) = 0;
  virtual void Recompute(const Addresses& at, int64_t step) = 0;
  virtual void Backward(const Addresses& at, int64_t step) = 0;
  virtual void BackwardInput(const Addresses& at, int64_t step) = 0;
  virtual void BackwardWeight(const Addresses& at, int64_t step) = 0;
  virtual void NormGrad(const Addresses& at) = 0;
  virtual void Step(const Addresses& at, const StepArgs& args) = 0;
};

}  // namespace pp
