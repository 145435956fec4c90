// Matrix products against sums in doubles.
#include "tests/kernels/kernel_cases.h"

namespace pp::kernels {

std::string ProductSize::Text() const {
  return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
}

namespace {

Comparison Matmul(const CpuKernels& kernels, const ProductSize& s) {
  Comparison result;
  for (const Operands operands : {Operands::kNN, Operands::kNT, Operands::kTN}) {
    for (const int variant : {0, 1, 2, 3, 4}) {  // plain, bias, += and bias, residual, +=
      const Floats a = Numbers(s.m * s.k, 1), b = Numbers(s.k * s.n, 2), bias = Numbers(s.n, 3);
      const Floats old = Numbers(s.m * s.n, 4), residual = Numbers(s.m * s.n, 5);
      MatmulShape shape = {.m = s.m, .n = s.n, .k = s.k, .operands = operands};
      if (variant == 1 || variant == 2) shape.bias = WithBias::kYes;
      if (variant == 2 || variant == 4) shape.update = Update::kAdd;
      if (variant == 3) shape.residual = WithResidual::kYes;
      const bool a_turned = operands == Operands::kTN, b_turned = operands == Operands::kNT;
      shape.lda = a_turned ? s.m : s.k, shape.ldb = b_turned ? s.k : s.n, shape.ldc = s.n;
      Floats c = old;
      Scratch scratch(cpu::Matmul::ScratchBytes(MatmulNumbers::kFp32));
      kernels.MatmulRun({.shape = shape,
                         .args = {.a = a.data(),
                                  .b = b.data(),
                                  .c = c.data(),
                                  .bias = bias.data(),
                                  .residual = residual.data(),
                                  .scratch = scratch.get(),
                                  .helpers = scratch.helpers()},
                         .threads = Threads()});
      Doubles want(s.m * s.n);
      for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.n; ++j) {
          double sum = shape.update == Update::kAdd ? old[i * s.n + j] : 0;
          if (variant == 1 || variant == 2) sum += bias[j];
          if (variant == 3) sum += residual[i * s.n + j];
          for (int64_t k = 0; k < s.k; ++k) {
            sum += static_cast<double>(a_turned ? a[k * s.m + i] : a[i * s.k + k]) *
                   (b_turned ? b[j * s.k + k] : b[k * s.n + j]);
          }
          want[i * s.n + j] = sum;
        }
      }
      result.Add(c, want, kEpsilon * (s.k + 4));
    }
  }
  return result;
}

// Leading dimensions larger than the rows, and columns that are not C's left alone.
Comparison MatmulInPlace(const CpuKernels& kernels) {
  const int64_t m = 10, n = 50, k = 20, lda = 23, ldb = 57, ldc = 61;
  const Floats a = Numbers(m * lda, 1), b = Numbers(k * ldb, 2), old = Numbers(m * ldc, 3);
  Floats c = old;
  Scratch scratch(cpu::Matmul::ScratchBytes(MatmulNumbers::kFp32));
  kernels.MatmulRun({.shape = {.m = m,
                               .n = n,
                               .k = k,
                               .residual = WithResidual::kYes,
                               .lda = lda,
                               .ldb = ldb,
                               .ldc = ldc},
                     .args = {.a = a.data(),
                              .b = b.data(),
                              .c = c.data(),
                              .residual = c.data(),
                              .scratch = scratch.get(),
                              .helpers = scratch.helpers()},
                     .threads = Threads()});
  Doubles want(old.begin(), old.end());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t x = 0; x < k; ++x) {
        want[i * ldc + j] += static_cast<double>(a[i * lda + x]) * b[x * ldb + j];
      }
    }
  }
  Comparison result;
  result.Add(c, want, kEpsilon * (k + 4));
  return result;
}

}  // namespace

// Edges of tiles, panels (48 columns, and two of 32 for 64), blocks (256 x 768) and chunks of k
// (384, and 192 up to 128 rows); one row, one column, and none of these.
std::vector<Case> MatmulCases() {
  std::vector<Case> cases;
  for (const ProductSize& size : {ProductSize{1, 1, 1},
                                  {3, 1, 5},
                                  {1, 72, 40},
                                  {8, 48, 16},
                                  {7, 257, 33},
                                  {259, 50, 9},
                                  {5, 800, 18},
                                  {9, 65, 801},
                                  {24, 64, 390},
                                  {130, 20, 400},
                                  {64, 128, 96}})
    cases.push_back({"matmul " + size.Text(),
                     [size](const CpuKernels& kernels) { return Matmul(kernels, size); }});
  cases.push_back({"matmul with leading dimensions", MatmulInPlace});
  return cases;
}

}  // namespace pp::kernels
