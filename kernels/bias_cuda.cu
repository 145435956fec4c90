// Gradients of biases on a GPU. Memory-bound: one access per element.
//
// The rows are cut into kBiasParts parts of equal size, whose sums are in scratch and are added in
// order. A block takes a part of 32 packs of columns; each of its warps takes every eighth row, a
// lane the same pack of each, and the warps' sums are added in order.
#include "kernels/bias.h"
#include "kernels/elements_cuda.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

template <typename N, int kSize>
__global__ void __launch_bounds__(kThreads) SumRows(BiasGradientArgs<N> a, int64_t rows) {
  auto& of_warps = Shared<float[kWarps][kWarp * kSize]>();
  const int64_t begin = BlockY() * rows, end = begin + rows < a.rows ? begin + rows : a.rows;
  const int64_t first = int64_t{BlockX()} * kWarp * kSize, c = first + Lane() * kSize;
  Pack<float, kSize> sum = {};
  for (int64_t row = begin + Warp(); c < a.columns && row < end; row += kWarps) {
    const auto dy = LoadFloats<kSize>(a.dy + row * a.columns + c);
    for (int j = 0; j < kSize; ++j) sum.at[j] += dy.at[j];
  }
  for (int j = 0; j < kSize; ++j) of_warps[Warp()][Lane() * kSize + j] = sum.at[j];
  SyncBlock();
  const int column = Thread();
  if (column >= kWarp * kSize || first + column >= a.columns) return;
  float all = 0;
  for (int w = 0; w < kWarps; ++w) all += of_warps[w][column];
  a.scratch[BlockY() * a.columns + first + column] = all;
}

template <typename N>
__global__ void __launch_bounds__(kThreads) AddParts(BiasGradientArgs<N> a, int parts) {
  const int64_t c = int64_t{BlockX()} * kThreads + Thread();
  if (c >= a.columns) return;
  float sum = 0;
  for (int part = 0; part < parts; ++part) sum += a.scratch[part * a.columns + c];
  a.dbias[c] = a.update == Update::kAdd ? a.dbias[c] + sum : sum;
}

template <typename N, int kSize>
void Run(const BiasGradientArgs<N>& args, Stream stream) {
  const int64_t each = CeilDiv(args.rows, kBiasParts), rows = each > 0 ? each : 1;
  const int64_t parts = CeilDiv(args.rows, rows);
  const Grid grid = {.x = CeilDiv(args.columns, kWarp * kSize),
                     .y = parts,
                     .threads = kThreads,
                     .shared = kThreads * kSize * sizeof(float)};
  Launch<SumRows<N, kSize>>(grid, stream, args, rows);
  Launch<AddParts<N>>({.x = CeilDiv(args.columns, kThreads), .threads = kThreads}, stream, args,
                      static_cast<int>(parts));
}

}  // namespace

template <typename N>
void BiasGradient(const BiasGradientArgs<N>& args, Stream stream) {
  constexpr int kSize = kPackSize<N>;
  static_assert(kWarp * kSize <= kThreads, "a thread adds a column of the warps' sums");
  Both(AccessOf(args.dy), AccessOfRows<kSize>(args.columns)) == Access::kPacks
      ? Run<N, kSize>(args, stream)
      : Run<N, 1>(args, stream);
}
PP_INSTANTIATE_CUDA(BiasGradient)

}  // namespace pp::kernels::cuda
