// All kernels except those of round.h and plain_matmul.h, which only GPUs have. To add one, write
// its Args in NAME.h, void NAME(const NAMEArgs&) in cpu/NAME_cpu.cc, the same with a stream in
// cuda/NAME_cuda.cu, and a row here.
#pragma once

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/bias.h"
#include "kernels/clip.h"
#include "kernels/cross_entropy.h"
#include "kernels/draw.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/head_norm.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/numbers.h"
#include "kernels/random.h"
#include "kernels/residual.h"
#include "kernels/rope.h"
#include "kernels/scale.h"
#include "kernels/sum_parts.h"
#include "kernels/sum_squares.h"
#include "kernels/swiglu.h"

// clang-format off
#define PP_PLAIN_KERNELS(X) \
  X(AdamW)                  \
  X(Add)                    \
  X(Clip)                   \
  X(CrossEntropyJoin)       \
  X(DrawJoin)               \
  X(Fill)                   \
  X(SumSquares)

// Those of activations, for all types of them (numbers.h).
#define PP_ACTIVATION_KERNELS(X) \
  X(AttentionBackward)           \
  X(AttentionForward)            \
  X(BiasGradient)                \
  X(CrossEntropyBackward)        \
  X(CrossEntropyForward)         \
  X(CrossEntropyPart)            \
  X(Draw)                        \
  X(Dropout)                     \
  X(EmbeddingBackward)           \
  X(EmbeddingForward)            \
  X(GeluBackward)                \
  X(GeluForward)                 \
  X(HeadNormBackward)            \
  X(HeadNormForward)             \
  X(LayerNormBackward)           \
  X(LayerNormForward)            \
  X(Residual)                    \
  X(Rope)                        \
  X(Scale)                       \
  X(SumParts)                    \
  X(SwiGluBackward)              \
  X(SwiGluForward)

// On a CPU only. A GPU's matrix products are cuBLASLt's, or those of plain_matmul.h, and weights are
// initialised on the host.
#define PP_HOST_KERNELS(X) \
  X(MatmulRun)             \
  X(RandomNormal)
// clang-format on

namespace pp::kernels {

struct MatmulRunArgs {
  MatmulShape shape;
  MatmulArgs args;
  int threads = 1;
};

}  // namespace pp::kernels
