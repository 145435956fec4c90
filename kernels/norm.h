// LayerNorm over the last dimension (Ba et al., 2016):
//   mean = sum(x)/C,  rstd = 1/sqrt(sum((x-mean)^2)/C + epsilon),  n = (x-mean)*rstd
//   y = n*gamma + beta
// Backward, with g = dy*gamma:
//   dx = rstd * (g - sum(g)/C - n*sum(g*n)/C),  dgamma = sum over rows of dy*n,  dbeta = of dy
// RMSNorm (Zhang and Sennrich, 2019) is the same with a mean of 0, without sum(g)/C and beta.
#pragma once

#include <cstdint>

#include "kernels/update.h"

namespace pp::kernels {

struct LayerNormForwardArgs {
  int64_t rows = 0, channels = 0;
  const float* x = nullptr;      // [rows, channels]
  const float* gamma = nullptr;  // [channels]
  const float* beta = nullptr;   // [channels]; RMSNorm: null
  float* y = nullptr;            // [rows, channels], =
  float* mean = nullptr;         // [rows], =; RMSNorm: null
  float* rstd = nullptr;         // [rows], =
  float epsilon = 1e-5f;
};

struct LayerNormBackwardArgs {
  int64_t rows = 0, channels = 0;
  const float* dy = nullptr;     // [rows, channels]
  const float* x = nullptr;      // [rows, channels]
  const float* gamma = nullptr;  // [channels]
  const float* mean = nullptr;   // [rows]; RMSNorm: null
  const float* rstd = nullptr;   // [rows]
  // Null: not computed.
  float* dx = nullptr;  // [rows, channels], `dx_update`; with kSet it may be dy
  Update dx_update = Update::kSet;
  // Null, both: not computed. They are computed before dx.
  float* dgamma = nullptr;  // [channels], `update`
  float* dbeta = nullptr;   // [channels], `update`; RMSNorm: null
  Update update = Update::kSet;
};

namespace cpu {

void LayerNormForward(const LayerNormForwardArgs& args);
void LayerNormBackward(const LayerNormBackwardArgs& args);

}  // namespace cpu
}  // namespace pp::kernels
