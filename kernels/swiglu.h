// SwiGLU (Shazeer, "GLU variants improve Transformer", 2020), of rows [gate | up]:
//   s = 1/(1 + exp(-gate)),  y = gate s up
//   dgate = dy up (s + gate s (1-s)),  dup = dy gate s
#pragma once

#include <cstdint>

namespace pp::kernels {

struct SwiGluForwardArgs {
  int64_t rows = 0, columns = 0;
  const float* x = nullptr;  // [rows, 2*columns]
  float* y = nullptr;        // [rows, columns], =
};

struct SwiGluBackwardArgs {
  int64_t rows = 0, columns = 0;
  const float* x = nullptr;   // [rows, 2*columns], input of the forward
  const float* dy = nullptr;  // [rows, columns]
  float* dx = nullptr;        // [rows, 2*columns], =; may be x
};

namespace cpu {

void SwiGluForward(const SwiGluForwardArgs& args);
void SwiGluBackward(const SwiGluBackwardArgs& args);

}  // namespace cpu
}  // namespace pp::kernels
