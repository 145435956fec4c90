// block.h for nvcc.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/launchable.h"

namespace pp::kernels::cuda {

inline __device__ int Thread() { return static_cast<int>(threadIdx.x); }
inline __device__ int Threads() { return static_cast<int>(blockDim.x); }
inline __device__ int Lane() { return static_cast<int>(threadIdx.x % kWarp); }
inline __device__ int Warp() { return static_cast<int>(threadIdx.x / kWarp); }
inline __device__ int BlockX() { return static_cast<int>(blockIdx.x); }
inline __device__ int BlockY() { return static_cast<int>(blockIdx.y); }
inline __device__ int BlockZ() { return static_cast<int>(blockIdx.z); }
inline __device__ int BlocksX() { return static_cast<int>(gridDim.x); }

inline __device__ void SyncBlock() { __syncthreads(); }
inline __device__ void SyncWarp() { __syncwarp(); }

template <typename T>
__device__ T ShuffleXor(T x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}
template <typename T>
__device__ T Shuffle(T x, int lane) {
  return __shfl_sync(0xffffffffu, x, lane);
}

template <typename T>
__device__ T& Shared() {
  extern __shared__ __align__(1024) unsigned char bytes[];
  return *reinterpret_cast<T*>(bytes);
}

template <typename N>
__device__ N Round(float x);
template <>
inline __device__ BFloat16 Round<BFloat16>(float x) {
  const __nv_bfloat16_raw raw = __float2bfloat16_rn(x);
  return {raw.x};
}
template <>
inline __device__ Float16 Round<Float16>(float x) {
  const __half_raw raw = __float2half_rn(x);
  return {raw.x};
}
inline __device__ float ToFloat(Float16 x) {
  __half_raw raw;
  raw.x = x.bits;
  return __half2float(raw);
}

// Of the current device; 0 if there is none.
inline int64_t MostShared() {
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) == cudaSuccess)
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
}

// A kernel that needs more shared memory than every GPU provides must request it.
template <auto kKernel, typename... Args>
void Launch(const Grid& grid, Stream stream, const Args&... args) {
  static_cast<void>(&kLaunchable<kKernel>);
  if (grid.x * grid.y * grid.z == 0) return;
  if (grid.shared > 48 * 1024)
    cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(grid.shared));
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z));
  kKernel<<<blocks, static_cast<unsigned>(grid.threads), static_cast<size_t>(grid.shared),
            static_cast<cudaStream_t>(stream)>>>(args...);
}

}  // namespace pp::kernels::cuda
