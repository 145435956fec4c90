// A CUDA kernel's view of its block, implemented by nvcc or by an emulation on the CPU: the same
// source is compiled for both.
//
//   block_cuda.h       nvcc: the processor's own instructions
//   block_emulated.h   any C++ compiler: threads of a block are fibers of one thread
//
// Blocks are one-dimensional, of whole warps; grids have up to three dimensions. Both sides provide
//
//   Thread(), Threads(), Lane(), Warp()      of this thread in its block
//   BlockX(), BlockY(), BlockZ(), BlocksX()  of this block in the grid
//   SyncBlock(), SyncWarp()                  barriers; all threads of the block, or warp, take part
//   ShuffleXor(x, mask), Shuffle(x, lane)    x of another lane; all lanes of the warp take part
//   Shared<T>()                              the block's shared memory; it begins with any bytes
//   MostShared()                             of the host: how many bytes of it a block can have
//   Round<N>(x)                              the nearest N (numbers.h)
//   Launch<kernel>(grid, stream, arguments)  starts a kernel; errors are the device's to report
//
// and __global__, __device__, __launch_bounds__ and __grid_constant__ as CUDA has them.
#pragma once

#include <cstdint>

#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels::cuda {

inline constexpr int kWarp = 32;

struct Grid {
  int64_t x = 1, y = 1, z = 1;  // blocks
  int threads = 256;            // of a block, a multiple of kWarp
  int64_t shared = 0;           // bytes of a block
};

}  // namespace pp::kernels::cuda

#ifdef __CUDACC__
#include "kernels/block/block_cuda.h"
#else
#include "kernels/block/block_emulated.h"
#endif

namespace pp::kernels::cuda {

// Elements that a thread reads or writes together, 128 bits if rows allow it. Addresses are aligned
// to their size, up to 16 bytes.
template <typename N, int kSize>
struct alignas(kSize * sizeof(N) < 16 ? kSize * sizeof(N) : 16) Pack {
  N at[kSize];
};
template <typename N>
inline constexpr int kPackSize = 16 / sizeof(N);

template <int kSize, typename N>
__device__ Pack<N, kSize> LoadPack(const N* from) {
  return *reinterpret_cast<const Pack<N, kSize>*>(from);
}
template <int kSize, typename N>
__device__ void StorePack(N* to, const Pack<N, kSize>& pack) {
  *reinterpret_cast<Pack<N, kSize>*>(to) = pack;
}

inline __device__ float ToFloat(float x) { return x; }
inline __device__ float ToFloat(BFloat16 x) {
  union {
    uint32_t bits;
    float number;
  } u = {static_cast<uint32_t>(x.bits) << 16};
  return u.number;
}
template <typename N>
__device__ N FromFloat(float x) {
  return Round<N>(x);
}
template <>
inline __device__ float FromFloat<float>(float x) {
  return x;
}

// The sum over kLanes adjacent lanes, with the same bits in all of them.
template <int kLanes = kWarp, typename T>
__device__ T WarpSum(T x) {
  for (int mask = kLanes / 2; mask > 0; mask /= 2) x += ShuffleXor(x, mask);
  return x;
}

inline constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace pp::kernels::cuda
