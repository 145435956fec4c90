// AdamW (Loshchilov and Hutter, 2019), one pass over memory, for each tensor:
//   g = gradient_scale * gradient
//   m = beta1*m + (1-beta1)*g,  v = beta2*v + (1-beta2)*g^2
//   w = w - learning_rate * ((m/correction1) / (sqrt(v/correction2) + epsilon) + decay*w)
// where correction1 = 1 - beta1^step and correction2 = 1 - beta2^step, step counting from 1.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/clip.h"
#include "kernels/round.h"
#include "kernels/stream.h"

namespace pp::kernels {

// All aligned to 16 bytes.
struct AdamWTensor {
  int64_t n = 0;
  float* weights = nullptr;         // [n], updated
  float* m = nullptr;               // [n], updated
  float* v = nullptr;               // [n], updated
  const float* gradient = nullptr;  // [n]
  float decay = 0;                  // 0 for biases and norms
  // On a GPU only: [n], = the weights as products take them, whether updated or not; null: nowhere.
  void* rounded = nullptr;
};

struct AdamWArgs {
  std::span<const AdamWTensor> tensors;
  float gradient_scale = 1;  // clipping and averaging
  // If only the device knows the scale (clip.h): replaces gradient_scale, and its corrections, if
  // it has any, replace AdamW's. If the norm is not finite nothing is updated.
  const Clipped* clipped = nullptr;
  float learning_rate = 0;
  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f;
  float correction1 = 1, correction2 = 1;
  Rounding rounding = Rounding::kNone;  // of `rounded`
};

namespace cpu {

void AdamW(const AdamWArgs& args);

}  // namespace cpu

namespace cuda {

void AdamW(const AdamWArgs& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
