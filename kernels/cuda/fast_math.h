// A GPU's fast exponential and quotient: one instruction of its special function units plus one or
// two others, where the exact ones take about ten. On the CPU, for tests, both are exact.
//
//   FastExp(x)        e^x, erring by 2 + |1.18 x| units in the last place at most; 0 below -87.4,
//                     infinity above 88.7
//   FastDivide(a, b)  a/b to 2 units in the last place; 0 where 2^126 < |b|
#pragma once

#include <cmath>

#include "kernels/block/block.h"

namespace pp::kernels::cuda {

#ifdef __CUDACC__
inline __device__ float FastExp(float x) { return __expf(x); }
inline __device__ float FastDivide(float a, float b) { return __fdividef(a, b); }
#else
inline float FastExp(float x) { return std::exp(x); }
inline float FastDivide(float a, float b) { return a / b; }
#endif

}  // namespace pp::kernels::cuda
