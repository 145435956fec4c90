// One compute instruction as a device gets it: what to do, on which stage, and where its values and
// states lie.
//
// Sizes and inner places are StageLayout's (schema/model/layout.h), of the micro-batch's shape. All
// addresses are the device's and aligned to kAlign; the host does not dereference them. Those that
// the stage does not have, or the instruction does not use, are null or stale.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/loss_scale.h"
#include "kernels/update.h"
#include "schema/program.h"

namespace pp {

struct StageCall {
  Op op = Op::kForward;  // LOAD, messages, WAITs and collectives never come here
  int stage = -1;
  int pipe = 0;    // of the stage's copy
  int micro = -1;  // below M: of `step`
  int shape = 0;   // of the micro-batch: of the job's (schema/model/shapes.h)

  // States.
  std::byte* weights = nullptr;      // of the version that is used, or, for STEP, made
  std::byte* weights_old = nullptr;  // STEP: what it starts from; the same if there is one version
  // On a GPU, whose products read it, if activations have two bytes: those weights in their type.
  std::byte* rounded = nullptr;
  int32_t slot = 0;  // which of the versions that the device keeps `weights` and `rounded` are
  std::byte* wgrad = nullptr;
  std::byte* optimizer = nullptr;
  std::byte* scratch = nullptr;  // drop_scratch_bytes for CFW, else scratch_bytes
  // The squares of the whole model's gradients, one double per block, followed by the norm, which
  // STEP writes. Null if the plan takes no norm.
  double* norm = nullptr;
  // If the dtype scales the loss: the last stage's forwards and RE read it, STEP changes it.
  // INVARIANT: no STEP lies between a micro-batch's forward and its backward. Plans of such a dtype
  // take a norm and make no versions (schema/proof/verify.cc), and STEP needs the whole norm.
  kernels::LossScale* scaling = nullptr;

  // Values.
  int32_t* tokens = nullptr;   // [B, T] first stage: all but BW_input
  int32_t* targets = nullptr;  // [B, T] last stage: forwards, RE; -1 takes no part
  // Of packed documents, [B, T]: the first key that each query sees, and each token's position in
  // its document. Null: a sequence is one document.
  const int32_t* first_keys = nullptr;
  const int32_t* positions = nullptr;
  std::byte* act_before = nullptr;   // act(s-1,m), instead of tokens
  std::byte* act = nullptr;          // act(s,m); forwards
  double* loss = nullptr;            // last stage, forwards: sum over the micro-batch's tokens
  std::byte* kept = nullptr;         // of the stash, what a CFW also keeps: kept_bytes
  std::byte* stash = nullptr;        // the rest; all but CFW; a backward changes it
  std::byte* grad = nullptr;         // grad(s,m), not in the last stage
  std::byte* grad_before = nullptr;  // grad(s-1,m), not in the first stage
  std::byte* work = nullptr;         // BW_input, BW_weight

  int64_t step = 1;            // of the training, from 1
  int64_t update = 1;          // STEP: index of the weights' update, from 1
  int64_t first_sequence = 0;  // index in the whole training of the micro-batch's first sequence
  // Of the gradient: 1 / tokens of the step that count. 0: none does, and STEP makes no update.
  double per_token = 1;
  // EVAL, last stage: if draw_row is not -1, `loss` becomes the token that is drawn from the logits
  // of that row of the micro-batch; -1 if they are NaN.
  int32_t draw_row = -1;
  uint32_t draw_number = 0;
  float temperature = 1;
  // kSet for the first micro-batch that adds to wgrad since the last STEP.
  kernels::Update accumulate = kernels::Update::kSet;
};

// Computes stages: knows the model and the kernels, which are those of a device's compute lane. Its
// queue calls it when it reaches the call (on a CPU), or when the call is submitted (on a GPU).
class StageExecutor {
 public:
  virtual ~StageExecutor() = default;
  // Allocates no memory.
  virtual void Run(const StageCall& call) = 0;
  // What it has allocated outside the arena.
  virtual int64_t bytes() const { return 0; }
};

}  // namespace pp
