// Shared by GPU kernels that go over elements. They are memory-bound: a thread takes one pack of 16
// bytes of each operand (two, of an operand with wider elements), so that a warp moves whole lines,
// and the grid covers all packs. If an address or a size does not allow packs, a thread takes one
// element.
//
// No sum in these kernels depends on which of the two is used, so a tensor gives the same bits at
// any address.
#pragma once

#include <cstdint>

#include "kernels/block/block.h"

namespace pp::kernels::cuda {

enum class Access { kSingle, kPacks };

// kPacks if all of these addresses are aligned to 16 bytes. A null pointer is.
template <typename... T>
Access AccessOf(const T*... at) {
  return ((reinterpret_cast<uintptr_t>(at) % 16 == 0) && ...) ? Access::kPacks : Access::kSingle;
}
// kPacks if a pack of kSize elements never crosses the end of `sizes`, such as that of a row.
template <int kSize, typename... T>
Access AccessOfRows(T... sizes) {
  return ((sizes % kSize == 0) && ...) ? Access::kPacks : Access::kSingle;
}
inline Access Both(Access a, Access b) { return a == Access::kPacks ? b : a; }

inline constexpr int kElementThreads = 256;

// each.At<kSize>(i) processes elements i to i + kSize - 1, for all i below n.
template <int kSize, typename Each>
__global__ void __launch_bounds__(kElementThreads) ForEach(int64_t n, Each each) {
  const int64_t i = (int64_t{BlockX()} * kElementThreads + Thread()) * kSize;
  if (i + kSize <= n) return each.template At<kSize>(i);
  for (int64_t j = i; j < n; ++j) each.template At<1>(j);
}

template <int kSize, typename Each>
void LaunchForEach(Access access, int64_t n, const Each& each, Stream stream) {
  if (access == Access::kPacks) {
    const int64_t blocks = CeilDiv(n, int64_t{kElementThreads} * kSize);
    Launch<ForEach<kSize, Each>>({.x = blocks, .threads = kElementThreads}, stream, n, each);
  } else {
    const int64_t blocks = CeilDiv(n, kElementThreads);
    Launch<ForEach<1, Each>>({.x = blocks, .threads = kElementThreads}, stream, n, each);
  }
}

template <int kSize, typename N>
__device__ Pack<float, kSize> LoadFloats(const N* from) {
  const auto in = LoadPack<kSize>(from);
  Pack<float, kSize> out;
  for (int j = 0; j < kSize; ++j) out.at[j] = ToFloat(in.at[j]);
  return out;
}

// StorePack to the GPU's own memory, guaranteed as one store: nvcc may split a pack and write its
// elements one by one, as it does in the backward of SwiGLU. (tests/cuda/registers.txt counts.)
template <typename P>
__device__ void StoreAtOnce(void* to, const P& pack) {
#ifdef __CUDACC__
  if constexpr (sizeof(P) % sizeof(uint4) == 0) {
    for (size_t i = 0; i < sizeof(P) / sizeof(uint4); ++i) {
      uint4 words;
      memcpy(&words, reinterpret_cast<const uint4*>(&pack) + i, sizeof(words));
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                   :
                   : "l"(__cvta_generic_to_global(static_cast<uint4*>(to) + i)), "r"(words.x),
                     "r"(words.y), "r"(words.z), "r"(words.w)
                   : "memory");
    }
    return;
  }
#endif
  *static_cast<P*>(to) = pack;
}

template <typename N, int kSize>
__device__ void StoreFloats(N* to, const Pack<float, kSize>& numbers) {
  Pack<N, kSize> out;
  for (int j = 0; j < kSize; ++j) out.at[j] = FromFloat<N>(numbers.at[j]);
  StoreAtOnce(to, out);
}

// The first `left` of kSize elements; the others are `rest`.
template <int kSize, Access kAccess, typename N>
__device__ Pack<float, kSize> LoadFirst(const N* from, int64_t left, float rest) {
  if (kAccess == Access::kPacks && left >= kSize) return LoadFloats<kSize>(from);
  Pack<float, kSize> out;
  for (int j = 0; j < kSize; ++j) out.at[j] = j < left ? ToFloat(from[j]) : rest;
  return out;
}
template <Access kAccess, typename N, int kSize>
__device__ void StoreFirst(N* to, const Pack<float, kSize>& numbers, int64_t left) {
  if (kAccess == Access::kPacks && left >= kSize) return StoreFloats(to, numbers);
  for (int j = 0; j < kSize; ++j)
    if (j < left) to[j] = FromFloat<N>(numbers.at[j]);
}

}  // namespace pp::kernels::cuda
