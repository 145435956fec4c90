// Matrix products of a warpgroup, four warps in a row, on Hopper's tensor cores (PTX ISA, "wgmma"):
// they read tiles from shared memory, and run while the threads go on. In PTX for nvcc, for sm_90a,
// and in C++ for the emulation (kernels/block/block.h).
//
// A tile is [rows][64] elements of two bytes, at a multiple of kTileAlign bytes. Of row r the eight
// elements of column 8c lie at column 8 * (c ^ r % 8): eight rows at one column are in different
// banks ("128-byte swizzle").
//
// A product is one of 64 rows, 64 columns and a depth of 64. Warp w of the group has rows 16w to
// 16w + 15 of the sums as fragments C (kernels/block/mma.h), of eight matrices [16][8] side by
// side, and of a left factor in registers as fragments A, of four matrices [16][16] side by side.
//
//   BeginProducts(registers...);     sums to add to, and fragments, are in place
//   MultiplyTile...(...);            any number, each with other sums
//   CommitProducts();                a group
//   WaitForProducts(registers...);   all groups are done; before, neither sums nor fragments are
//                                    touched
#pragma once

#include "kernels/block/mma.h"

#ifndef __CUDACC__
#include <array>
#include <cstring>
#include <memory>
#endif

namespace pp::kernels::cuda {

inline constexpr int kGroupThreads = 4 * kWarp, kTileSide = 64, kTileAlign = 1024;

// Where an element of a tile is.
inline __device__ int InTile(int row, int column) {
  return row * kTileSide + ((column / 8 ^ row % 8) * 8 | column % 8);
}

using TileSums = float[8][4];
using TileFragments = FragmentA[4];

// Whether a product replaces its sums.
enum class Adds { kNo, kYes };

// Sums, rounded, as a left factor.
template <TwoBytes N>
__device__ void ToFragments(const TileSums& sums, TileFragments& fragments) {
  PP_UNROLL
  for (int k = 0; k < 4; ++k) {
    PP_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* two = &sums[2 * k + i / 2][i % 2 * 2];
      fragments[k].at[i] = RoundPair<N>(two[0], two[1]);
    }
  }
}

#ifdef __CUDACC__

// Whether this is code for Hopper: elsewhere these do not exist, and what uses them is not
// launched.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PP_WARPGROUPS 1
#else
#define PP_WARPGROUPS 0
#endif

// Thread(), read anew: what is computed from it takes no registers from one use to the next.
inline __device__ int ThreadAnew() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// What a kernel without them does, if it is launched after all: code for other GPUs.
inline __device__ void Trap() { __trap(); }

// A barrier of the block. Products see all that has been copied (CopyAsync).
inline __device__ void MeetCopies() {
  WaitForCopies();
#if PP_WARPGROUPS
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  SyncBlock();
}

inline __device__ void CommitProducts() {
#if PP_WARPGROUPS
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

#define PP_FOUR(x) "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
#define PP_SUMS(s)                                                                          \
  PP_FOUR(s[0]), PP_FOUR(s[1]), PP_FOUR(s[2]), PP_FOUR(s[3]), PP_FOUR(s[4]), PP_FOUR(s[5]), \
      PP_FOUR(s[6]), PP_FOUR(s[7])

// The compiler moves no access to these across it.
inline __device__ void Pin(TileSums& s) {
#if PP_WARPGROUPS
  asm volatile("" : PP_SUMS(s)::"memory");
#endif
}
template <int kTiles>
__device__ void Pin(TileSums (&s)[kTiles]) {
  PP_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) Pin(s[tile]);
}
inline __device__ void Pin(TileFragments& f) {
#if PP_WARPGROUPS
  PP_UNROLL
  for (int k = 0; k < 4; ++k)
    asm volatile(""
                 : "+r"(f[k].at[0]), "+r"(f[k].at[1]), "+r"(f[k].at[2]),
                   "+r"(f[k].at[3])::"memory");
#endif
}

template <typename... Registers>
__device__ void BeginProducts(Registers&... registers) {
#if PP_WARPGROUPS
  (Pin(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

template <typename... Registers>
__device__ void WaitForProducts(Registers&... registers) {
#if PP_WARPGROUPS
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  (Pin(registers), ...);
#endif
}

// Of a tile, or of a part of it that starts `bytes` further on. Eight rows take 1024 bytes.
template <TwoBytes N>
__device__ uint64_t TileDescriptor(const N* tile, uint32_t bytes) {
  const uint64_t at = ((SharedAddress(tile) + bytes) & 0x3ffff) >> 4;
  return at | uint64_t{1} << 16 | uint64_t{kTileAlign >> 4} << 32 | uint64_t{1} << 62;
}

#define PP_SUM_NAMES                                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
// Products of depth 16: = or += (kUpdate 0 or 1) of rows, += of columns.
#define PP_TILE_PRODUCT(N, type)                                                               \
  template <int kUpdate>                                                                       \
  __device__ void ProductOfRows(uint64_t a, uint64_t b, TileSums& sums, N) {                   \
    asm volatile(                                                                              \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                           \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " PP_SUM_NAMES           \
        "%32, %33, p, 1, 1, 0, 0;\n}"                                                          \
        : PP_SUMS(sums)                                                                        \
        : "l"(a), "l"(b), "n"(kUpdate));                                                       \
  }                                                                                            \
  inline __device__ void ProductOfColumns(const FragmentA& a, uint64_t b, TileSums& sums, N) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " PP_SUM_NAMES  \
                 "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                                      \
                 : PP_SUMS(sums)                                                               \
                 : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "l"(b));            \
  }
#if PP_WARPGROUPS
PP_TILE_PRODUCT(BFloat16, "bf16")
PP_TILE_PRODUCT(Float16, "f16")
#endif

// sums[row][column] = or += row `row` of the tile a, which has the group's 64 rows, times row
// `column` of the tile b.
template <Adds kAdds, TwoBytes N>
__device__ void MultiplyTileRows(const N* a, const N* b, TileSums& sums) {
#if PP_WARPGROUPS
  ProductOfRows<kAdds == Adds::kYes>(TileDescriptor(a, 0), TileDescriptor(b, 0), sums, N{});
  PP_UNROLL
  for (int k = 1; k < 4; ++k)
    ProductOfRows<1>(TileDescriptor(a, k * 32), TileDescriptor(b, k * 32), sums, N{});
#endif
}

// sums[row][column] += sum over k of a[row][k] * b[k][column], with the tile b. Fragments are made
// anew for each product: left factors that were kept in registers over several of them gave wrong
// results on an H200, from the second one on.
template <TwoBytes N>
__device__ void MultiplyTileColumns(const TileFragments& a, const N* b, TileSums& sums) {
#if PP_WARPGROUPS
  PP_UNROLL
  for (int k = 0; k < 4; ++k)
    ProductOfColumns(a[k], TileDescriptor(b, k * 16 * kTileSide * 2), sums, N{});
#endif
}

#undef PP_TILE_PRODUCT
#undef PP_SUM_NAMES

// Whether the current device has them.
inline bool HasWarpgroups() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major == 9;
}

#else

#define PP_WARPGROUPS 1

inline bool HasWarpgroups() { return emulation::has_warpgroups; }

inline int ThreadAnew() { return Thread(); }

// Until the wait, the sums are NaNs, and factors are read as late as possible.
inline void MeetCopies() {
  WaitForCopies();
  emulation::here->shows_copies = true;
  SyncBlock();
}
template <typename... Registers>
void BeginProducts(Registers&...) {}
inline void CommitProducts() { emulation::here->products.emplace_back(); }

template <typename... Registers>
void WaitForProducts(Registers&...) {
  auto& products = emulation::here->products;
  if (!products.empty() && products.back()) emulation::Fail("products are not committed");
  for (const auto& product : products)
    if (product) product();
  products.clear();
}

namespace emulation {

// sums = or += left(row, k), of this lane's row 0 or 1, times right(k, column). What they add to is
// in place, or comes from a product before this one.
template <typename Left, typename Right>
void MultiplyLater(Adds adds, const Left& left, const Right& right, TileSums& sums) {
  if (!here->shows_copies) Fail("products do not see what was copied");
  using Values = std::array<float, 32>;
  Values pending;
  std::memset(&pending, 0xff, sizeof(pending));
  const bool follows = std::memcmp(sums, &pending, sizeof(sums)) == 0;
  auto before = std::make_shared<Values>();
  if (adds == Adds::kYes) std::memcpy(before->data(), sums, sizeof(sums));
  std::memcpy(sums, &pending, sizeof(sums));
  here->products.push_back([=, &sums] {
    if (adds == Adds::kYes && follows) std::memcpy(before->data(), sums, sizeof(sums));
    for (int n = 0; n < 8; ++n)
      for (int i = 0; i < 4; ++i) {
        float sum = 0;
        for (int k = 0; k < kTileSide; ++k)
          sum += left(i / 2, k) * right(k, n * 8 + Lane() % 4 * 2 + i % 2);
        sums[n][i] = (*before)[n * 4 + i] + sum;
      }
  });
}

template <TwoBytes N>
void CheckTile(const N* tile) {
  if (reinterpret_cast<uintptr_t>(tile) % kTileAlign != 0) Fail("a tile is not aligned");
}

// Two rows of the left factor, from the fragments of four lanes.
template <TwoBytes N>
auto RowsOf(const TileFragments& a) {
  struct Fragments {
    TileFragments at;
  } mine;
  std::memcpy(mine.at, a, sizeof(mine.at));
  const std::byte* all = ExchangeInWarp(Sync::kMatrix, mine);
  std::array<std::array<float, kTileSide>, 2> rows;
  for (int t = 0; t < 4; ++t) {
    const auto its = OfLane<Fragments>(all, Lane() / 4 * 4 + t);
    for (int k = 0; k < 4; ++k)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 2; ++j)
          rows[i % 2][k * 16 + i / 2 * 8 + t * 2 + j] =
              ToFloat(N{static_cast<uint16_t>(its.at[k].at[i] >> 16 * j)});
  }
  return rows;
}

}  // namespace emulation

template <Adds kAdds, TwoBytes N>
void MultiplyTileRows(const N* a, const N* b, TileSums& sums) {
  emulation::CheckTile(a), emulation::CheckTile(b);
  emulation::MultiplyLater(
      kAdds,
      [a](int row, int k) { return ToFloat(a[InTile(Warp() % 4 * 16 + Lane() / 4 + row * 8, k)]); },
      [b](int k, int column) { return ToFloat(b[InTile(column, k)]); }, sums);
}

template <TwoBytes N>
void MultiplyTileColumns(const TileFragments& a, const N* b, TileSums& sums) {
  emulation::CheckTile(b);
  emulation::MultiplyLater(
      Adds::kYes, [rows = emulation::RowsOf<N>(a)](int row, int k) { return rows[row][k]; },
      [b](int k, int column) { return ToFloat(b[InTile(k, column)]); }, sums);
}

#endif

}  // namespace pp::kernels::cuda
