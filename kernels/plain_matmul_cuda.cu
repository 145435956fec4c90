// Matrix products of any shape on a GPU. A block computes a square of C, a thread one element of
// it, from squares of A and B in shared memory.
#include "kernels/block.h"
#include "kernels/plain_matmul.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kSide = 16, kThreads = kSide * kSide;

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

struct Squares {
  float a[kSide][kSide + 1], b[kSide][kSide + 1];
};

// The thread's element of the square that begins at `row` and `column`. Neighbours in a warp read
// neighbours in memory.
template <typename N>
__device__ void Load(const Matrix<N>& from, int64_t row, int64_t column,
                     float (&to)[kSide][kSide + 1]) {
  const int slow = Thread() / kSide, fast = Thread() % kSide;
  const bool by_rows = from.column_step == 1;
  const int i = by_rows ? slow : fast, j = by_rows ? fast : slow;
  to[i][j] = from.At(row + i, column + j);
}

template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    Multiply(Matrix<In> a, Matrix<In> b, Out* c, int64_t ldc, const In* bias, const Out* added) {
  auto& squares = Shared<Squares>();
  const int i = Thread() / kSide, j = Thread() % kSide;
  const int64_t row = int64_t{BlockX()} * kSide, column = int64_t{BlockY()} * kSide;
  float sum = 0;
  for (int64_t k = 0; k < a.columns; k += kSide) {
    Load(a, row, k, squares.a);
    Load(b, k, column, squares.b);
    SyncBlock();
    for (int l = 0; l < kSide; ++l) sum += squares.a[i][l] * squares.b[l][j];
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
                             .shared = sizeof(Squares)},
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
