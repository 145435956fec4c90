// SwiGLU (Shazeer, "GLU variants improve Transformer", 2020), of rows [gate | up]:
//   s = 1/(1 + exp(-gate)),  y = gate s up
//   dgate = dy up (s + gate s (1-s)),  dup = dy gate s
#pragma once

#include <cstdint>

#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels {

template <typename N>
struct SwiGluForwardArgs {
  int64_t rows = 0, columns = 0;
  const N* x = nullptr;  // [rows, 2*columns]
  N* y = nullptr;        // [rows, columns], =
};

template <typename N>
struct SwiGluBackwardArgs {
  int64_t rows = 0, columns = 0;
  const N* x = nullptr;   // [rows, 2*columns], input of the forward
  const N* dy = nullptr;  // [rows, columns]
  N* dx = nullptr;        // [rows, 2*columns], =; may be x
};

namespace cpu {

template <typename N>
void SwiGluForward(const SwiGluForwardArgs<N>& args);
template <typename N>
void SwiGluBackward(const SwiGluBackwardArgs<N>& args);

}  // namespace cpu

namespace cuda {

template <typename N>
void SwiGluForward(const SwiGluForwardArgs<N>& args, Stream stream);
template <typename N>
void SwiGluBackward(const SwiGluBackwardArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
