// One pipeline stage of GPT-2 as kernel calls on the CPU.
//
// The places of everything are StageLayout's (schema/model.h); the caller says where each value of
// a micro-batch begins. Nothing here takes memory after construction, and every result has the same
// bits whatever the split into stages, the order of micro-batches between the calls, or the number
// of threads. Gradients are sums over micro-batches in the order of the calls.
//
//   Forward = ForwardDrop + Recompute           bit for bit
//   Backward = BackwardInput + BackwardWeight   bit for bit
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "kernels/dropout.h"
#include "kernels/matmul.h"
#include "runtime/device/stage_call.h"
#include "schema/model.h"

namespace pp {

// What the stages of one rank share: prepared matrix products, and the kernels' working space of
// all threads but the first, whose is in scratch.
class Workspace {
 public:
  Workspace(const Job& job, int threads);

  kernels::cpu::Matmul& matmul() { return matmul_; }
  void* helpers();

 private:
  kernels::cpu::Matmul matmul_;
  std::vector<std::byte> helpers_;
};

class Transformer {
 public:
  // `seed` is that of dropout. The workspace stays the caller's, who may give it to several stages
  // that never run at the same time.
  // REQUIRES: CheckJob(job).ok().
  Transformer(const Job& job, int stage, uint64_t seed, Workspace* workspace);

  const StageLayout& layout() const { return layout_; }

  // act(s,m), or the loss in the last stage, and stash(s,m).
  void Forward(const StageCall& call);
  // The same without a stash.
  void ForwardDrop(const StageCall& call);
  // The stash alone.
  void Recompute(const StageCall& call);

  // grad(s-1,m), and wgrad(s) = or += this micro-batch's part.
  void Backward(const StageCall& call);
  // grad(s-1,m) and work(s,m).
  void BackwardInput(const StageCall& call);
  // wgrad(s) = or += this micro-batch's part.
  void BackwardWeight(const StageCall& call);

 private:
  enum class Keep { kStash, kScratch };  // where a forward puts what a backward would need
  struct Saved;
  struct SavedHead;
  struct Work;
  struct Branch {
    int product;
    const float *input, *weight, *bias, *stream;
    float* out;
    kernels::DropoutKey dropout;
  };
  // Ids of prepared matrix products; those to the weights by Update.
  struct Products {
    int qkv, proj, hidden, mlp, logits;
    int d_qkv, d_proj, d_hidden, d_mlp, d_logits;
    int w_qkv[2], w_proj[2], w_hidden[2], w_mlp[2], w_logits[2];
  };

  void PrepareProducts();
  void Multiply(const StageCall& call, int product, kernels::MatmulArgs args);
  kernels::AttentionShape Heads() const;
  kernels::DropoutKey Dropout(const StageCall& call, int layer, int operation, float p) const;
  // Layers count from the first of the stage.
  const Tensor& LayerTensor(int layer, int tensor) const;
  const Tensor& FinalNormTensor(int index) const;
  const Tensor& HeadTensor() const;
  int64_t HeadGradient() const;
  static const float* Weight(const StageCall& call, const Tensor& tensor);
  static float* Gradient(const StageCall& call, const Tensor& tensor);

  Saved SavedAt(const StageCall& call, int layer, Keep keep) const;
  SavedHead SavedHeadAt(const StageCall& call, Keep keep) const;
  static Work WorkAt(std::byte* base, const LayerWork& places);
  float* Stream(const StageCall& call, int layer, Keep keep) const;
  const float* Input(const StageCall& call, int layer, Keep keep) const;

  void RunForward(const StageCall& call, Keep keep);
  void ForwardLayer(const StageCall& call, int layer, Keep keep);
  void ForwardHead(const StageCall& call, Keep keep);
  void Normalize(const float* x, const float* gamma, const float* beta, float* mean, float* rstd,
                 float* y) const;
  void AddToStream(const StageCall& call, const Branch& branch);

  void StartFlow(const StageCall& call, float* d_final, float* flow);
  void LayerBackwardInput(const StageCall& call, int layer, const Work& work, float* flow);
  void LayerBackwardWeight(const StageCall& call, int layer, const Work& work);
  void HeadBackwardWeight(const StageCall& call, const float* d_final);
  void EmbeddingBackwardWeight(const StageCall& call, const float* d_embed);

  StageLayout layout_;
  ModelConfig model_;
  int64_t batch_, sequence_;
  int64_t rows_;  // batch * sequence
  uint64_t seed_;
  Workspace* workspace_;
  Products products_{};
};

}  // namespace pp
