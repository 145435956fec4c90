// Matrix products of any shape on a GPU. A block computes a square of C, a thread one element of
// it, from squares of A and B in shared memory.
#include "kernels/block/block.h"
#include "kernels/plain_matmul.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kSide = 16, kDepth = 32, kThreads = kSide * kSide;

// A[m,k] or B[k,n], however it is stored.
template <typename N>
struct Matrix {
  const N* at;
  int64_t rows, columns;
  int64_t row_step, column_step;

  // An element outside is 0.
  __device__ float At(int64_t row, int64_t column) const {
    if (row >= rows || column >= columns) return 0;
    return ToFloat(at[row * row_step + column * column_step]);
  }
};

template <int kRows, int kColumns>
struct Tile {
  float at[kRows][kColumns + 1];
};
struct Tiles {
  Tile<kSide, kDepth> a;
  Tile<kDepth, kSide> b;
};

// The tile that begins at `row` and `column`, by all threads. Neighbours in a warp read neighbours
// in memory.
template <typename N, int kRows, int kColumns>
__device__ void Load(const Matrix<N>& from, int64_t row, int64_t column,
                     Tile<kRows, kColumns>* to) {
  for (int e = Thread(); e < kRows * kColumns; e += kThreads) {
    const bool by_rows = from.column_step == 1;
    const int i = by_rows ? e / kColumns : e % kRows, j = by_rows ? e % kColumns : e / kRows;
    to->at[i][j] = from.At(row + i, column + j);
  }
}

template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    Multiply(Matrix<In> a, Matrix<In> b, Out* c, int64_t ldc, const In* bias, const Out* added) {
  auto& tiles = Shared<Tiles>();
  const int i = Thread() / kSide, j = Thread() % kSide;
  const int64_t row = int64_t{BlockX()} * kSide, column = int64_t{BlockY()} * kSide;
  float sum = 0;
  for (int64_t k = 0; k < a.columns; k += kDepth) {
    Load(a, row, k, &tiles.a);
    Load(b, k, column, &tiles.b);
    SyncBlock();
    for (int l = 0; l < kDepth; ++l) sum += tiles.a.at[i][l] * tiles.b.at[l][j];
    SyncBlock();
  }
  if (row + i >= a.rows || column + j >= b.columns) return;
  const int64_t at = (row + i) * ldc + column + j;
  if (bias != nullptr) sum += ToFloat(bias[column + j]);
  if (added != nullptr) sum += ToFloat(added[at]);
  c[at] = FromFloat<Out>(sum);
}

template <typename In, typename Out>
void Run(const PlainMatmulArgs& plain, Stream stream) {
  const MatmulShape s = Whole(plain.shape);
  const MatmulArgs& args = plain.args;
  const bool a_turned = s.operands == Operands::kTN, b_turned = s.operands == Operands::kNT;
  const Matrix<In> a = {static_cast<const In*>(args.a), s.m, s.k, a_turned ? 1 : s.lda,
                        a_turned ? s.lda : 1};
  const Matrix<In> b = {static_cast<const In*>(args.b), s.k, s.n, b_turned ? 1 : s.ldb,
                        b_turned ? s.ldb : 1};
  auto* const c = static_cast<Out*>(args.c);
  const In* const bias = s.bias == WithBias::kYes
                             ? static_cast<const In*>(static_cast<const void*>(args.bias))
                             : nullptr;
  const Out* const added = s.update == Update::kAdd ? c
                           : s.residual == WithResidual::kYes
                               ? static_cast<const Out*>(args.residual)
                               : nullptr;
  Launch<Multiply<In, Out>>({.x = CeilDiv(s.m, kSide),
                             .y = CeilDiv(s.n, kSide),
                             .threads = kThreads,
                             .shared = sizeof(Tiles)},
                            stream, a, b, c, s.ldc, bias, added);
}

}  // namespace

void PlainMatmul(const PlainMatmulArgs& args, Stream stream) {
  switch (args.shape.numbers) {
    case MatmulNumbers::kFp32:
      return Run<float, float>(args, stream);
    case MatmulNumbers::kBf16:
      return Run<BFloat16, BFloat16>(args, stream);
    case MatmulNumbers::kBf16Sum:
      return Run<BFloat16, float>(args, stream);
    case MatmulNumbers::kFp16:
      return Run<Float16, Float16>(args, stream);
    case MatmulNumbers::kFp16Sum:
      return Run<Float16, float>(args, stream);
  }
}

}  // namespace pp::kernels::cuda
