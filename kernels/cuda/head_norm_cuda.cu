// RMSNorm of heads on a GPU. Bound by memory: two accesses an element forward, three backward.
//
// A warp takes a head of a row; in the backward, of at most kNormParts blocks, one after the other.
// A lane owns columns, whose sums for both gammas stay in its registers. The warps' sums, and then
// the blocks', are added in one order, so that no two runs differ.
#include "kernels/attention.h"
#include "kernels/cuda/add_parts_cuda.h"
#include "kernels/cuda/elements_cuda.h"
#include "kernels/head_norm.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// A head's columns in a lane, kSize side by side each time.
template <int kSize>
inline constexpr int kPacks = kMostHeadDim / (kWarp * kSize);

template <typename N, int kSize>
__global__ void __launch_bounds__(kThreads) Forward(HeadNormForwardArgs<N> a) {
  const int64_t normed = a.heads + a.kv_heads, all = normed + a.kv_heads;
  const int64_t item = int64_t{BlockX()} * kWarps + Warp(), row = item / all, head = item % all;
  if (row >= a.rows) return;
  const N* x = a.x + item * a.head_dim;
  N* y = a.y + item * a.head_dim;
  Pack<float, kSize> held[kPacks<kSize>] = {};
  float squares = 0;
  PP_UNROLL
  for (int p = 0; p < kPacks<kSize>; ++p) {
    const int c = (p * kWarp + Lane()) * kSize;
    if (c < a.head_dim) held[p] = LoadFloats<kSize>(x + c);
    for (int i = 0; i < kSize; ++i) squares += held[p].at[i] * held[p].at[i];
  }
  const bool values = head >= normed;
  const float* gamma = head < a.heads ? a.q_gamma : a.k_gamma;
  const float rstd = 1 / sqrtf(WarpSum(squares) * (1 / static_cast<float>(a.head_dim)) + a.epsilon);
  PP_UNROLL
  for (int p = 0; p < kPacks<kSize>; ++p) {
    const int c = (p * kWarp + Lane()) * kSize;
    if (c >= a.head_dim) continue;
    for (int i = 0; i < kSize; ++i)
      if (!values) held[p].at[i] *= rstd * gamma[c + i];
    StoreFloats(y + c, held[p]);
  }
  if (Lane() == 0 && !values) a.rstd[row * normed + head] = rstd;
}

template <int kSize>
struct GammaSums {
  float of[2][kPacks<kSize>][kSize];  // of queries, of keys
};

template <typename N, int kSize>
__global__ void __launch_bounds__(kThreads) Backward(HeadNormBackwardArgs<N> a) {
  const int64_t normed = a.heads + a.kv_heads, items = a.rows * normed;
  const float each = 1 / static_cast<float>(a.head_dim);
  GammaSums<kSize> mine = {};
  for (int64_t item = int64_t{BlockX()} * kWarps + Warp(); item < items;
       item += BlocksX() * kWarps) {
    const int64_t row = item / normed, head = item % normed;
    const int64_t at = (row * (normed + a.kv_heads) + head) * a.head_dim;
    const bool keys = head >= a.heads;
    const float* gamma = keys ? a.k_gamma : a.q_gamma;
    const float rstd = a.rstd[item];
    Pack<float, kSize> normal[kPacks<kSize>] = {}, g[kPacks<kSize>] = {};
    float sum = 0;
    PP_UNROLL
    for (int p = 0; p < kPacks<kSize>; ++p) {
      const int c = (p * kWarp + Lane()) * kSize;
      if (c >= a.head_dim) continue;
      normal[p] = LoadFloats<kSize>(a.x + at + c);
      g[p] = LoadFloats<kSize>(a.d + at + c);
      for (int i = 0; i < kSize; ++i) {
        normal[p].at[i] *= rstd;
        const float part = g[p].at[i] * normal[p].at[i];
        mine.of[0][p][i] += keys ? 0 : part;
        mine.of[1][p][i] += keys ? part : 0;
        g[p].at[i] *= gamma[c + i];
        sum += g[p].at[i] * normal[p].at[i];
      }
    }
    const float mean = WarpSum(sum) * each;
    PP_UNROLL
    for (int p = 0; p < kPacks<kSize>; ++p) {
      const int c = (p * kWarp + Lane()) * kSize;
      if (c >= a.head_dim) continue;
      for (int i = 0; i < kSize; ++i) g[p].at[i] = rstd * (g[p].at[i] - normal[p].at[i] * mean);
      StoreFloats(a.d + at + c, g[p]);
    }
  }
  // The block's sums, warp after warp.
  auto& of_warps = Shared<float[kWarps][2 * kMostHeadDim]>();
  PP_UNROLL
  for (int p = 0; p < kPacks<kSize>; ++p)
    for (int i = 0; i < kSize; ++i)
      for (int which = 0; which < 2; ++which)
        of_warps[Warp()][which * kMostHeadDim + (p * kWarp + Lane()) * kSize + i] =
            mine.of[which][p][i];
  SyncBlock();
  float* part = a.scratch + int64_t{BlockX()} * 2 * a.head_dim;
  for (int c = Thread(); c < 2 * a.head_dim; c += kThreads) {
    const int column = c < a.head_dim ? c : kMostHeadDim + c - static_cast<int>(a.head_dim);
    float all = 0;
    for (int w = 0; w < kWarps; ++w) all += of_warps[w][column];
    part[c] = all;
  }
}

template <typename N>
__global__ void __launch_bounds__(kAddWarps* kWarp)
    AddGammas(HeadNormBackwardArgs<N> a, int parts) {
  const int64_t c = int64_t{BlockX()} * kWarp + Lane(), columns = 2 * a.head_dim;
  const float all = SumOfParts(a.scratch + c, columns, parts, c < columns);
  if (Warp() == 0 && c < columns) a.dgamma[c] = all;
}

// Calls run with the number of elements per access that heads allow.
template <typename Run>
void ForHeads(int64_t head_dim, const Run& run) {
  head_dim % 4 == 0 ? run.template operator()<4>() : run.template operator()<1>();
}

}  // namespace

template <typename N>
void HeadNormForward(const HeadNormForwardArgs<N>& args, Stream stream) {
  const int64_t items = args.rows * (args.heads + 2 * args.kv_heads);
  ForHeads(args.head_dim, [&]<int kSize>() {
    Launch<Forward<N, kSize>>({.x = CeilDiv(items, kWarps), .threads = kThreads}, stream, args);
  });
}
PP_INSTANTIATE_CUDA(HeadNormForward)

template <typename N>
void HeadNormBackward(const HeadNormBackwardArgs<N>& args, Stream stream) {
  const int64_t items = args.rows * (args.heads + args.kv_heads);
  const int64_t blocks = std::min<int64_t>(CeilDiv(items, kWarps), kNormParts);
  ForHeads(args.head_dim, [&]<int kSize>() {
    Launch<Backward<N, kSize>>(
        {.x = blocks, .threads = kThreads, .shared = kWarps * 2 * kMostHeadDim * sizeof(float)},
        stream, args);
  });
  Launch<AddGammas<N>>(AddGrid(CeilDiv(2 * args.head_dim, kWarp), blocks), stream, args,
                       static_cast<int>(blocks));
}
PP_INSTANTIATE_CUDA(HeadNormBackward)

}  // namespace pp::kernels::cuda
