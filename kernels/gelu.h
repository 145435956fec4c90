// GELU as in GPT-2 ("gelu_new", Hendrycks and Gimpel, 2016):
//   u = sqrt(2/pi) * (x + 0.044715 x^3),  y = 0.5 x (1 + tanh u)
//   dx = dy * (0.5 (1 + tanh u) + 0.5 x (1 - tanh^2 u) sqrt(2/pi) (1 + 3*0.044715 x^2))
// or exact:
//   y = x P(x),  dx = dy * (P(x) + x p(x))    P, p: distribution and density of N(0, 1)
#pragma once

#include <cstdint>

#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels {

enum class GeluForm { kTanh, kExact };

template <typename N>
struct GeluForwardArgs {
  int64_t n = 0;
  const N* x = nullptr;  // [n]
  N* y = nullptr;        // [n], =; may be x
  GeluForm form = GeluForm::kTanh;
};

template <typename N>
struct GeluBackwardArgs {
  int64_t n = 0;
  const N* x = nullptr;   // [n], input of the forward
  const N* dy = nullptr;  // [n]
  N* dx = nullptr;        // [n], =; may be dy
  GeluForm form = GeluForm::kTanh;
};

namespace cpu {

template <typename N>
void GeluForward(const GeluForwardArgs<N>& args);
template <typename N>
void GeluBackward(const GeluBackwardArgs<N>& args);

}  // namespace cpu

namespace cuda {

template <typename N>
void GeluForward(const GeluForwardArgs<N>& args, Stream stream);
template <typename N>
void GeluBackward(const GeluBackwardArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
