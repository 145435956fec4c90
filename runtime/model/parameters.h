// What happens to a stage's parameters outside of the micro-batches: they are made or loaded, their
// gradients are measured, and the optimizer changes them. Places are StageLayout's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "schema/model.h"
#include "schema/status.h"

namespace pp {

// A new model's weights; the same numbers in every split.
void InitWeights(const StageLayout& layout, uint64_t seed, std::byte* weights);

// Weights from DIR/model.safetensors of a Hugging Face GPT-2, fp32. A tensor that is missing or has
// another shape or type is an error that names it; on an error the weights are undefined.
Status LoadWeights(const StageLayout& layout, const std::string& dir, std::byte* weights);

// With one stage and tied embeddings: adds the head's gradient to the look-up's. With more, the two
// are on two stages, and each adds what it receives: nothing happens here.
void AddTied(const StageLayout& layout, std::byte* wgrad);

// norm[i] = sum of the squares of this stage's norm block i. REQUIRES: tied gradients are added.
void SumSquares(const StageLayout& layout, const std::byte* wgrad, double* norm);

struct AdamWOptions {
  float learning_rate = 0;
  float beta1 = 0.9f;
  float beta2 = 0.95f;  // as for GPT-3 and most language models since; PyTorch's default is 0.999
  float epsilon = 1e-8f;
  float weight_decay = 0;    // of matrices
  float gradient_scale = 1;  // clipping
  int64_t step = 1;          // counts from 1
};

// AdamW on all weights of the stage. REQUIRES: tied gradients are added.
void StepAdamW(const StageLayout& layout, const AdamWOptions& options, const std::byte* wgrad,
               std::byte* optimizer, std::byte* weights);

}  // namespace pp
