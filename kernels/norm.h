// LayerNorm over the last dimension (Ba et al., 2016):
//   mean = sum(x)/C,  rstd = 1/sqrt(sum((x-mean)^2)/C + epsilon),  n = (x-mean)*rstd
//   y = n*gamma + beta
// Backward, with g = dy*gamma:
//   dx = rstd * (g - sum(g)/C - n*sum(g*n)/C),  dgamma = sum over rows of dy*n,  dbeta = of dy
// RMSNorm (Zhang and Sennrich, 2019) is the same with a mean of 0, without sum(g)/C and beta.
#pragma once

#include <cstdint>

#include "kernels/numbers.h"
#include "kernels/stream.h"
#include "kernels/update.h"

namespace pp::kernels {

template <typename N>
struct LayerNormForwardArgs {
  int64_t rows = 0, channels = 0;
  const N* x = nullptr;          // [rows, channels]
  const float* gamma = nullptr;  // [channels]
  const float* beta = nullptr;   // [channels]; RMSNorm: null
  N* y = nullptr;                // [rows, channels], =
  float* mean = nullptr;         // [rows], =; RMSNorm: null
  float* rstd = nullptr;         // [rows], =
  float epsilon = 1e-5f;
};

template <typename N>
struct LayerNormBackwardArgs {
  int64_t rows = 0, channels = 0;
  const N* dy = nullptr;         // [rows, channels]
  const N* x = nullptr;          // [rows, channels]
  const float* gamma = nullptr;  // [channels]
  const float* mean = nullptr;   // [rows]; RMSNorm: null
  const float* rstd = nullptr;   // [rows]
  // Null: not computed.
  N* dx = nullptr;  // [rows, channels], =; it may be dy or `add`
  // [rows, channels], added to dx: the gradient so far of what x is also an input of; null: none.
  const N* add = nullptr;
  // Null, both: not computed. They are computed before dx.
  float* dgamma = nullptr;  // [channels], `update`
  float* dbeta = nullptr;   // [channels], `update`; RMSNorm: null
  Update update = Update::kSet;
  float* scratch = nullptr;  // on a GPU, for dgamma: NormScratchFloats(channels)
};

inline constexpr int kNormParts = 512;  // of the rows, at most, whose sums a GPU adds
inline constexpr int64_t NormScratchFloats(int64_t channels) { return 2 * kNormParts * channels; }

namespace cpu {

template <typename N>
void LayerNormForward(const LayerNormForwardArgs<N>& args);
template <typename N>
void LayerNormBackward(const LayerNormBackwardArgs<N>& args);

}  // namespace cpu

namespace cuda {

// REQUIRES, for both: at most as many channels as fit in a block's shared memory, where the sums of
// dgamma and dbeta take 8 bytes per channel.
inline constexpr int kMostChannels = 20480;

template <typename N>
void LayerNormForward(const LayerNormForwardArgs<N>& args, Stream stream);
template <typename N>
void LayerNormBackward(const LayerNormBackwardArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
