// x *= factor.
#pragma once

#include <cstdint>

#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels {

template <typename N>
struct ScaleArgs {
  int64_t n = 0;
  N* x = nullptr;  // [n], rounded once
  float factor = 1;
};

namespace cpu {

template <typename N>
void Scale(const ScaleArgs<N>& args);

}  // namespace cpu

namespace cuda {

template <typename N>
void Scale(const ScaleArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
