// Instructions that C++ cannot express, in PTX for nvcc and in C++ for the emulation
// (kernels/block/block.h): matrix products of a warp on tensor cores, and copies from global to
// shared memory that run while the thread computes.
//
// A fragment is a lane's part of a matrix. With g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix
// Fragments for mma.m16n8k16"), two adjacent elements in each 32-bit word, the first one low:
//
//   A [16][16]  at[0]: row g, columns 2t, 2t+1     at[1]: row g+8, the same columns
//               at[2]: row g, columns 2t+8, 2t+9   at[3]: row g+8, these columns
//   B [16][8]   at[0]: rows 2t, 2t+1 of column g   at[1]: rows 2t+8, 2t+9 of column g
//               of two matrices side by side, at[2] and at[3] are the second one's
//   C [16][8]   at[0], at[1]: row g, columns 2t, 2t+1     at[2], at[3]: row g+8
//
// All of a warp's lanes take part in Mma and LoadMatrix. They exist from sm_80 on. Hopper's
// products of four warps together: warpgroup_mma.h.
#pragma once

#include <cstdint>

#include "kernels/block/block.h"
#include "kernels/numbers.h"

// Before a loop of known length: unrolls it fully, so that what it indexes can be in registers.
#ifdef __CUDACC__
#define PP_UNROLL _Pragma("unroll")
#define PP_NO_UNROLL _Pragma("unroll 1")
#else
#define PP_UNROLL
#define PP_NO_UNROLL
#endif

namespace pp::kernels::cuda {

struct FragmentA {
  uint32_t at[4];
};
struct FragmentsB {  // of two matrices side by side, [16][16]
  uint32_t at[4];
};

#ifdef __CUDACC__

inline __device__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Two elements, rounded to N, as in a fragment.
template <typename N>
__device__ uint32_t RoundPair(float low, float high);
template <>
inline __device__ uint32_t RoundPair<BFloat16>(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <>
inline __device__ uint32_t RoundPair<Float16>(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <typename N>
__device__ void Mma(const FragmentA& a, uint32_t b0, uint32_t b1, float (&c)[4]);
template <>
inline __device__ void Mma<BFloat16>(const FragmentA& a, uint32_t b0, uint32_t b1, float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
}

template <>
inline __device__ void Mma<Float16>(const FragmentA& a, uint32_t b0, uint32_t b1, float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
}

// c0 and c1 += A times the first matrix of B, and the second. All are of N.
template <typename N>
__device__ void Mma(const FragmentA& a, const FragmentsB& b, float (&c0)[4], float (&c1)[4]) {
  Mma<N>(a, b.at[0], b.at[1], c0);
  Mma<N>(a, b.at[2], b.at[3], c1);
}

// Four matrices [8][8]. Lane 8*i + r passes row r of matrix i: 8 elements in shared memory, aligned
// to 16 bytes. words[i] holds elements 2t, 2t+1 of row g of matrix i.
template <TwoBytes N>
__device__ void LoadMatrix(const N* row, uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// The same, each matrix transposed: words[i] holds elements g of rows 2t and 2t+1.
template <TwoBytes N>
__device__ void LoadMatrixTransposed(const N* row, uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// Copies `bytes` of kBytes from global memory, and zeros for the rest. What `to` points to in
// shared memory must not be touched before WaitForCopies.
template <int kBytes>
__device__ void CopyAsync(const void* from, int bytes, void* to) {
  static_assert(kBytes == 4 || kBytes == 16);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(SharedAddress(to)), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(SharedAddress(to)), "l"(from), "r"(bytes)
                 : "memory");
  }
}

// This thread's copies since the last call form a group.
inline __device__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all of this thread's groups but the last kLater. Other threads see them after a
// barrier.
template <int kLater = 0>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

// All elements of another lane.
template <int kCount>
__device__ void ShuffleAll(const float (&mine)[kCount], int lane, float (&its)[kCount]) {
  PP_UNROLL
  for (int i = 0; i < kCount; ++i) its[i] = Shuffle(mine[i], lane);
}

// 2^x, within 2 units in the last place; results below 2^-126 are 0.
inline __device__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else

template <typename N>
uint32_t RoundPair(float low, float high) {
  return Round<N>(low).bits | static_cast<uint32_t>(Round<N>(high).bits) << 16;
}

// What the lanes exchange is widened before, once: of two rows of A and of a column of both
// matrices the elements at depths 2t, 2t+1, 2t+8, 2t+9.
template <typename N>
void Mma(const FragmentA& a, const FragmentsB& b, float (&c0)[4], float (&c1)[4]) {
  using Four [[gnu::vector_size(16)]] = float;
  struct Both {
    Four a[2], b[2];
  } mine;
  for (int i = 0; i < 2; ++i) {
    const auto four = [](uint32_t x, uint32_t y) {
      const auto number = [](uint32_t bits) { return ToFloat(N{static_cast<uint16_t>(bits)}); };
      return Four{number(x), number(x >> 16), number(y), number(y >> 16)};
    };
    mine.a[i] = four(a.at[i], a.at[i + 2]);
    mine.b[i] = four(b.at[2 * i], b.at[2 * i + 1]);
  }
  const std::byte* all = emulation::ExchangeInWarp(emulation::Sync::kMatrix, mine);
  const int g = Lane() / 4, t = Lane() % 4;
  Four sums[2][2][2] = {};  // by matrix, row and column
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto row = emulation::OfLane<Both>(all, 4 * g + i);
    const auto left = emulation::OfLane<Both>(all, 8 * t + i);
    const auto right = emulation::OfLane<Both>(all, 8 * t + 4 + i);
#pragma GCC unroll 4
    for (int at = 0; at < 4; ++at) {
      sums[at / 2][at % 2][0] += row.a[at % 2] * left.b[at / 2];
      sums[at / 2][at % 2][1] += row.a[at % 2] * right.b[at / 2];
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto total = [](const Four& x) { return (x[0] + x[1]) + (x[2] + x[3]); };
    c0[i] += total(sums[0][i / 2][i % 2]);
    c1[i] += total(sums[1][i / 2][i % 2]);
  }
}

// Each lane reads its row before they are synchronised, so that what another one writes there is
// not seen without a barrier.
template <TwoBytes N>
void LoadMatrix(const N* row, uint32_t (&words)[4]) {
  struct Row {
    uint32_t words[4];
  } mine;
  std::memcpy(&mine, row, sizeof(mine));
  const std::byte* all = emulation::ExchangeInWarp(emulation::Sync::kMatrix, mine);
  for (int i = 0; i < 4; ++i)
    words[i] = emulation::OfLane<Row>(all, 8 * i + Lane() / 4).words[Lane() % 4];
}

template <TwoBytes N>
void LoadMatrixTransposed(const N* row, uint32_t (&words)[4]) {
  struct Row {
    uint16_t numbers[8];
  } mine;
  std::memcpy(&mine, row, sizeof(mine));
  const std::byte* all = emulation::ExchangeInWarp(emulation::Sync::kMatrix, mine);
  const int g = Lane() / 4, t = Lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const auto low = emulation::OfLane<Row>(all, 8 * i + 2 * t);
    const auto high = emulation::OfLane<Row>(all, 8 * i + 2 * t + 1);
    words[i] = low.numbers[g] | static_cast<uint32_t>(high.numbers[g]) << 16;
  }
}

// Until the wait, the destination holds NaNs: neither the new nor the old contents can be read.
template <int kBytes>
void CopyAsync(const void* from, int bytes, void* to) {
  static_assert(kBytes == 4 || kBytes == 16);
  std::memset(to, 0xff, kBytes);
  emulation::copied_bytes += bytes;
  emulation::here->copies.push_back({from, bytes, to, kBytes});
}

inline void CommitCopies() { emulation::here->copies.push_back({}); }

template <int kLater = 0>
void WaitForCopies() {
  emulation::here->shows_copies = false;
  auto& copies = emulation::here->copies;
  auto groups = std::count_if(copies.begin(), copies.end(),
                              [](const emulation::Copy& copy) { return copy.to == nullptr; });
  auto copy = copies.begin();
  for (; groups > kLater; ++copy) {
    if (copy->to == nullptr) {
      --groups;
      continue;
    }
    std::memset(copy->to, 0, copy->room);
    std::memcpy(copy->to, copy->from, copy->bytes);
  }
  copies.erase(copies.begin(), copy);
}

template <int kCount>
void ShuffleAll(const float (&mine)[kCount], int lane, float (&its)[kCount]) {
  const std::byte* all = emulation::ExchangeInWarp(emulation::Sync::kShuffle, mine);
  std::memcpy(its, all + lane * emulation::kMostBytes, sizeof(its));
}

inline float Exp2(float x) { return std::exp2(x); }

#endif

}  // namespace pp::kernels::cuda
