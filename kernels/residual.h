// out = x + dropout(y). The backward is dx = dout and, for dy, Dropout (dropout.h) of dout.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"
#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels {

// x, y, out: [range.n]; out may be x or y.
template <typename N>
struct ResidualArgs {
  MaskedRange range;
  const N* x = nullptr;
  const N* y = nullptr;
  N* out = nullptr;  // =
  DropoutKey dropout;
};

namespace cpu {

template <typename N>
void Residual(const ResidualArgs<N>& args);

}  // namespace cpu

namespace cuda {

template <typename N>
void Residual(const ResidualArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
