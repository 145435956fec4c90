// What tools/cuda_proofs must find: one kernel for each forbidden thing.
#include <cuda_runtime.h>

namespace pp {
namespace {

__global__ void Atomic(const float* x, float* sum) { atomicAdd(sum, x[threadIdx.x]); }

template <typename N>
__global__ void Double(const N* x, N* y) {
  y[threadIdx.x] = static_cast<N>(x[threadIdx.x] * 0.1);
}

// More live values than the registers of 1024 threads hold.
__global__ void __launch_bounds__(1024) Spills(const float* x, float* y) {
  float kept[128];
  for (int i = 0; i < 128; ++i) kept[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 128; ++i) y[i * 1024 + threadIdx.x] = kept[i] * kept[127 - i];
}

}  // namespace

void Plant(float* x) {
  Atomic<<<1, 32>>>(x, x);
  Double<float><<<1, 32>>>(x, x);
  Spills<<<1, 1024>>>(x, x);
}

}  // namespace pp
