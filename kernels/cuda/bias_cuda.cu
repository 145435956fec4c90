// Gradients of biases on a GPU. Memory-bound: one access per element.
//
// The rows are cut into kBiasParts parts of equal size, whose sums are in scratch and are then
// added (add_parts_cuda.h): two launches for all biases. A block takes a part of 32 packs of
// columns of one of them; each of its warps takes every eighth row, a lane the same pack of each,
// and the warps' sums are added in order.
#include "kernels/bias.h"
#include "kernels/cuda/add_parts_cuda.h"
#include "kernels/cuda/elements_cuda.h"
#include "kernels/cuda/tensors_cuda.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// One bias. A row of scratch has a part of the columns of all of them, side by side.
template <typename N>
struct Columns {
  int64_t n;
  const N* dy;
  float* dbias;
  float* scratch;  // of its first column, in the first part
};

struct Rows {
  int64_t all, each;  // of a part
};

template <typename N, int kSize>
__global__ void __launch_bounds__(kThreads)
    SumRows(const __grid_constant__ TensorBatch<Columns<N>> batch, Rows rows, int64_t stride) {
  auto& of_warps = Shared<float[kWarps][kWarp * kSize]>();
  const TensorBlock place = FindTensor(batch);
  const Columns<N>& a = batch.tensors[place.tensor];
  const int64_t begin = BlockY() * rows.each;
  const int64_t end = begin + rows.each < rows.all ? begin + rows.each : rows.all;
  const int64_t first = place.block * kWarp * kSize, c = first + Lane() * kSize;
  Pack<float, kSize> sum = {};
  for (int64_t row = begin + Warp(); c < a.n && row < end; row += kWarps) {
    const auto dy = LoadFloats<kSize>(a.dy + row * a.n + c);
    for (int j = 0; j < kSize; ++j) sum.at[j] += dy.at[j];
  }
  for (int j = 0; j < kSize; ++j) of_warps[Warp()][Lane() * kSize + j] = sum.at[j];
  SyncBlock();
  const int column = Thread();
  if (column >= kWarp * kSize || first + column >= a.n) return;
  float all = 0;
  for (int w = 0; w < kWarps; ++w) all += of_warps[w][column];
  a.scratch[BlockY() * stride + first + column] = all;
}

template <typename N>
__global__ void __launch_bounds__(kAddWarps* kWarp)
    AddParts(const __grid_constant__ TensorBatch<Columns<N>> batch, int64_t stride, int parts,
             Update update) {
  const TensorBlock place = FindTensor(batch);
  const Columns<N>& a = batch.tensors[place.tensor];
  const int64_t c = place.block * kWarp + Lane();
  const float sum = SumOfParts(a.scratch + c, stride, parts, c < a.n);
  if (Warp() == 0 && c < a.n) a.dbias[c] = update == Update::kAdd ? a.dbias[c] + sum : sum;
}

// Sets where each bias's blocks end, which take `columns` each; returns how many there are.
template <typename Batch>
int64_t CountBlocks(int64_t columns, Batch& batch) {
  for (int i = 0; i < batch.count; ++i)
    batch.ends[i] = static_cast<int32_t>((i > 0 ? batch.ends[i - 1] : 0) +
                                         CeilDiv(batch.tensors[i].n, columns));
  return batch.blocks();
}

template <typename N, int kSize>
void Run(const BiasGradientArgs<N>& args, TensorBatch<Columns<N>>& batch, int64_t stride,
         Stream stream) {
  static_assert(kWarp * kSize <= kThreads, "a thread adds a column of the warps' sums");
  const int64_t each = CeilDiv(args.rows, kBiasParts), rows = each > 0 ? each : 1;
  const int64_t parts = CeilDiv(args.rows, rows);
  const Grid grid = {.x = CountBlocks(kWarp * kSize, batch),
                     .y = parts,
                     .threads = kThreads,
                     .shared = kThreads * kSize * sizeof(float)};
  Launch<SumRows<N, kSize>>(grid, stream, batch, Rows{args.rows, rows}, stride);
  Launch<AddParts<N>>(AddGrid(CountBlocks(kWarp, batch), parts), stream, batch, stride,
                      static_cast<int>(parts), args.update);
}

}  // namespace

template <typename N>
void BiasGradient(const BiasGradientArgs<N>& args, Stream stream) {
  constexpr int kSize = kPackSize<N>;
  using Batch = TensorBatch<Columns<N>>;
  for (size_t begin = 0; begin < args.tensors.size(); begin += Batch::kMost) {
    Batch batch;
    Access access = Access::kPacks;
    int64_t columns = 0;
    for (size_t i = begin; i < args.tensors.size() && batch.count < Batch::kMost; ++i) {
      const BiasTensor<N>& tensor = args.tensors[i];
      batch.tensors[batch.count++] = {tensor.n, tensor.dy, tensor.dbias, args.scratch + columns};
      columns += tensor.n;
      access = Both(access, Both(AccessOf(tensor.dy), AccessOfRows<kSize>(tensor.n)));
    }
    access == Access::kPacks ? Run<N, kSize>(args, batch, columns, stream)
                             : Run<N, 1>(args, batch, columns, stream);
  }
}
PP_INSTANTIATE_CUDA(BiasGradient)

}  // namespace pp::kernels::cuda
