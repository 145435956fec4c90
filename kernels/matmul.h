// C[m,n] (= or +=) op(A) op(B) (+ bias[n]) (+ residual[m,n]), row-major.
//
//   operands   A          B          use in a layer Y = X W + b
//   kNN        A[m,k]     B[k,n]     forward, W as [in,out]
//   kNT        A[m,k]     B[n,k]     dX = dY W^T; the tied head, logits = X E^T
//   kTN        A[k,m]     B[k,n]     dW += X^T dY
//
//   numbers    A          B                   C, residual   use
//   kFp32      float      float               float         all
//   kBf16      BFloat16   float, of which it  BFloat16      forward, dX; B is a weight
//                         takes the nearest BFloat16
//   kBf16Sum   BFloat16   BFloat16            float         dW; no residual
//   kFp16, kFp16Sum       the same of Float16
//
// An epilogue processes the whole product P, bias included:
//
//   kGelu          aux = P, C = gelu(P)             a layer, and what its backward needs of it
//   kGeluBackward  C = P gelu'(aux)                 the gradient with respect to GELU's input
//
// aux has C's type and layout; kernels/gelu.h has the formulas. Whether gelu is applied to P or to
// aux, which is rounded, is up to the device. No epilogue with kAdd, nor for a sum.
//
// A row of a matrix starts `lda`, `ldb`, `ldc` elements after the previous one (0: no gap). A
// residual has the layout of C, and cannot be combined with kAdd, nor kAdd with kBf16 or kFp16.
//
// A product is cut into blocks, each computed by one thread, and how a sum is cut depends only on
// the shape: the result has the same bits for any number of threads. Nothing but the given memory
// is used.
//
// Sums are fp32 in all of them, and C is rounded once. In kFp32 the products are fp32, too, by
// fused multiply-adds, or on processors with AMX by products of bfloat16 that are as precise;
// matmul_amx.cc says how, and what happens to infinities.
//
// Why not oneDNN 2.6.3, measured on GPT-2 124M: its matmul primitive takes six heap blocks at each
// execution, needs rows without gaps, and drops to half the speed for rows of 3072 floats; its
// sgemm takes 74 kB from the heap at each call and is about as fast as this (//kernels:bench
// compares them), but guarantees nothing about bits for different numbers of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/numbers.h"
#include "kernels/update.h"

namespace pp::kernels {

enum class Operands { kNN, kNT, kTN };
enum class MatmulNumbers { kFp32, kBf16, kBf16Sum, kFp16, kFp16Sum };

// The types of products with activations N: forward and dX; and dW.
template <typename N>
inline constexpr MatmulNumbers kForwardNumbers = MatmulNumbers::kFp32;
template <>
inline constexpr MatmulNumbers kForwardNumbers<BFloat16> = MatmulNumbers::kBf16;
template <>
inline constexpr MatmulNumbers kForwardNumbers<Float16> = MatmulNumbers::kFp16;
template <typename N>
inline constexpr MatmulNumbers kWeightNumbers = MatmulNumbers::kFp32;
template <>
inline constexpr MatmulNumbers kWeightNumbers<BFloat16> = MatmulNumbers::kBf16Sum;
template <>
inline constexpr MatmulNumbers kWeightNumbers<Float16> = MatmulNumbers::kFp16Sum;

// Whether C has two bytes; then B and the bias, which are weights, are rounded to the nearest.
inline constexpr bool Rounds(MatmulNumbers numbers) {
  return numbers == MatmulNumbers::kBf16 || numbers == MatmulNumbers::kFp16;
}
enum class WithBias { kNo, kYes };
enum class WithResidual { kNo, kYes };
enum class Epilogue { kNone, kGelu, kGeluBackward };

struct MatmulShape {
  int64_t m = 0, n = 0, k = 0;
  Operands operands = Operands::kNN;
  Update update = Update::kSet;
  WithBias bias = WithBias::kNo;
  WithResidual residual = WithResidual::kNo;
  int64_t lda = 0, ldb = 0, ldc = 0;
  MatmulNumbers numbers = MatmulNumbers::kFp32;
  Epilogue epilogue = Epilogue::kNone;

  bool operator==(const MatmulShape&) const = default;
};

// With the row lengths filled in that it leaves to its sizes.
inline MatmulShape Whole(MatmulShape shape) {
  if (shape.lda == 0) shape.lda = shape.operands == Operands::kTN ? shape.m : shape.k;
  if (shape.ldb == 0) shape.ldb = shape.operands == Operands::kNT ? shape.k : shape.n;
  if (shape.ldc == 0) shape.ldc = shape.n;
  return shape;
}
// Elements from B's first one to its last.
inline int64_t NumbersOfB(const MatmulShape& shape) {
  const bool transposed = shape.operands == Operands::kNT;
  const int64_t rows = transposed ? shape.n : shape.k, columns = transposed ? shape.k : shape.n;
  return (rows - 1) * Whole(shape).ldb + columns;
}

struct MatmulArgs {
  const void* a = nullptr;  // of the shape's type
  const void* b = nullptr;
  void* c = nullptr;
  const float* bias = nullptr;     // [n], exactly when the shape says so
  const void* residual = nullptr;  // like C, exactly when the shape says so; may be C itself
  void* aux = nullptr;             // like C, exactly when there is an epilogue; not C
  void* scratch = nullptr;         // ScratchBytes of its numbers, aligned to 64
  void* helpers = nullptr;         // as much for each further thread, one after the other
};

namespace cpu {

// Belongs to one thread at a time. Threads that compute concurrently have one each.
class Matmul {
 public:
  // `threads`: how many threads one Run may use (those of SetThreads, at most).
  explicit Matmul(int threads = 1);
  ~Matmul();
  Matmul(Matmul&&) noexcept;
  Matmul& operator=(Matmul&&) noexcept;

  // Prepares what `shape` needs, once; the same shape gets the same id, and ids count from 0.
  int Prepare(const MatmulShape& shape);

  // Of one thread, for every shape with these types.
  static size_t ScratchBytes(MatmulNumbers numbers);

  // Allocates no memory.
  void Run(int id, const MatmulArgs& args);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cpu
}  // namespace pp::kernels
