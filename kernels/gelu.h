// GELU as in GPT-2 ("gelu_new", Hendrycks and Gimpel, 2016):
//   u = sqrt(2/pi) * (x + 0.044715 x^3),  y = 0.5 x (1 + tanh u)
//   dx = dy * (0.5 (1 + tanh u) + 0.5 x (1 - tanh^2 u) sqrt(2/pi) (1 + 3*0.044715 x^2))
#pragma once

#include <cstdint>

namespace pp::kernels {

struct GeluForwardArgs {
  int64_t n = 0;
  const float* x = nullptr;  // [n]
  float* y = nullptr;        // [n], =; may be x
};

struct GeluBackwardArgs {
  int64_t n = 0;
  const float* x = nullptr;   // [n], input of the forward
  const float* dy = nullptr;  // [n]
  float* dx = nullptr;        // [n], =; may be dy
};

namespace cpu {

void GeluForward(const GeluForwardArgs& args);
void GeluBackward(const GeluBackwardArgs& args);

}  // namespace cpu
}  // namespace pp::kernels
