// Sums of columns over the parts that blocks have made of them: as many parts at once as there are
// warps, in one order, so that no two runs differ.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/block/block.h"
#include "kernels/block/mma.h"

namespace pp::kernels::cuda {

// The most warps of a block, and parts of which a warp loads a column at once.
inline constexpr int kAddWarps = 16, kAddAtOnce = 8;

// A block takes kWarp columns.
inline Grid AddGrid(int64_t blocks, int64_t parts) {
  return {.x = blocks,
          .threads = static_cast<int>(std::clamp<int64_t>(parts, 1, kAddWarps)) * kWarp,
          .shared = kAddWarps * kWarp * sizeof(float)};
}

// A lane's column, whose parts are `stride` apart; a warp takes every 16th part, where there are so
// many. The result is in the first warp.
__device__ inline float SumOfParts(const float* column, int64_t stride, int parts, bool inside) {
  auto& of_warps = Shared<float[kAddWarps][kWarp]>();
  const int warps = Threads() / kWarp;
  float sum = 0;
  for (int part = Warp(); inside && part < parts; part += warps * kAddAtOnce) {
    PP_UNROLL
    for (int j = 0; j < kAddAtOnce; ++j) {
      const int i = part + j * warps;
      sum += i < parts ? column[i * stride] : 0;
    }
  }
  of_warps[Warp()][Lane()] = sum;
  SyncBlock();
  float all = 0;
  for (int w = 0; Warp() == 0 && w < warps; ++w) all += of_warps[w][Lane()];
  return all;
}

}  // namespace pp::kernels::cuda
