#include "runtime/device/cuda/products.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "kernels/gelu.h"
#include "kernels/plain_matmul.h"
#include "runtime/device/cuda/experiments.h"
#include "runtime/device/device.h"

namespace pp {

using kernels::Epilogue;
using kernels::MatmulArgs;
using kernels::MatmulNumbers;
using kernels::MatmulShape;

namespace {

template <typename N>
void RunEpilogueOf(Epilogue epilogue, int64_t n, const MatmulArgs& args,
                   CudaDriver::Stream stream) {
  auto *aux = static_cast<N*>(args.aux), *c = static_cast<N*>(args.c);
  if (epilogue == Epilogue::kGelu) {
    kernels::cuda::GeluForward<N>({.n = n, .x = aux, .y = c}, stream);
  } else {
    kernels::cuda::GeluBackward<N>({.n = n, .x = aux, .dy = c, .dx = c}, stream);
  }
}

}  // namespace

OperandBytes::OperandBytes(const MatmulShape& shape) {
  const MatmulShape s = Whole(shape);
  const int64_t in = s.numbers == MatmulNumbers::kFp32 ? 4 : 2;
  const int64_t out = kernels::Rounds(s.numbers) ? 2 : 4;
  const bool a_transposed = s.operands == kernels::Operands::kTN;
  a = (((a_transposed ? s.k : s.m) - 1) * s.lda + (a_transposed ? s.m : s.k)) * in;
  b = NumbersOfB(s) * in;
  c = ((s.m - 1) * s.ldc + s.n) * out;
  bias = s.n * in;
}

// In fp32, which serves for comparison, accuracy is not left to cuBLASLt's tanh, which guarantees
// nothing. A row of aux must have a multiple of eight elements.
bool MayFuse(const MatmulShape& shape) {
  return kernels::Rounds(shape.numbers) && Whole(shape).ldc % 8 == 0;
}

namespace {

// Whether operands are as aligned as their rows, which is what cuBLASLt is told. Columns of a
// matrix, as an adapter has them (runtime/model/adapters.h), may begin anywhere.
bool IsAligned(const MatmulShape& shape, const MatmulArgs& args) {
  constexpr uint32_t kMost = 64;
  const MatmulShape s = Whole(shape);
  const int64_t in = s.numbers == MatmulNumbers::kFp32 ? 4 : 2;
  const int64_t out = kernels::Rounds(s.numbers) ? 2 : 4;
  const auto is = [](const void* at, int64_t row_bytes) {
    return reinterpret_cast<uintptr_t>(at) % RowAlignment(row_bytes, kMost) == 0;
  };
  return is(args.a, s.lda * in) && is(args.b, s.ldb * in) && is(args.c, s.ldc * out) &&
         (s.residual == kernels::WithResidual::kNo || is(args.residual, s.ldc * out));
}

}  // namespace

MatmulShape WithoutEpilogue(MatmulShape shape) {
  shape.epilogue = Epilogue::kNone;
  return shape;
}

MatmulArgs WithoutEpilogue(const MatmulShape& shape, MatmulArgs args) {
  if (shape.epilogue == Epilogue::kGelu) args.c = args.aux;
  return args;
}

void RunEpilogue(const MatmulShape& shape, const MatmulArgs& args, CudaDriver::Stream stream) {
  PP_CHECK(kernels::Rounds(shape.numbers) && Whole(shape).ldc == shape.n);
  const int64_t n = shape.m * shape.n;
  shape.numbers == MatmulNumbers::kBf16
      ? RunEpilogueOf<kernels::BFloat16>(shape.epilogue, n, args, stream)
      : RunEpilogueOf<kernels::Float16>(shape.epilogue, n, args, stream);
}

CudaProducts::CudaProducts(Args args) : args_(std::move(args)), tried_(args_.driver->MakeEvent()) {}

// The index of the shape's product, which cuBLASLt computes or refuses.
int CudaProducts::Add(const MatmulShape& shape) {
  const MatmulShape whole = Whole(shape);
  const auto found = std::find_if(products_.begin(), products_.end(),
                                  [&](const Product& one) { return one.shape == whole; });
  const int index = static_cast<int>(found - products_.begin());
  if (found != products_.end()) return index;
  const OperandBytes bytes(whole);
  const int64_t after_c = (bytes.c + 255) / 256 * 256;
  const int64_t written = whole.epilogue == Epilogue::kNone ? bytes.c : after_c + bytes.c;
  PP_CHECK(std::max({bytes.a, bytes.b, bytes.bias, written}) <=
           static_cast<int64_t>(args_.dead.size()));
  std::byte* dead = args_.dead.data();
  const auto* in = reinterpret_cast<const float*>(dead);
  const MatmulArgs args = {
      .a = in, .b = in, .c = dead, .bias = in, .residual = in, .aux = dead + after_c};
  const GemmAlgorithm* algorithm = args_.gemms != nullptr ? args_.gemms->Find(whole) : nullptr;
  products_.push_back({whole, args_.driver->Prepare(whole, algorithm, args, args_.stream)});
  const PreparedProduct& by = products_.back().by;
  if (by.id >= 0) Finish(written);
  if (!by.note.empty()) args_.note(by.note);
  return index;
}

// What has been tried.
void CudaProducts::Finish(int64_t written) {
  CudaDriver& driver = *args_.driver;
  driver.Fill(args_.dead.data(), kUntouchedWord,
              std::min<int64_t>(written + 3, args_.dead.size()) / 4, args_.stream);
  driver.Record(tried_, args_.stream);
  while (!driver.Reached(tried_) && driver.status().ok()) sched_yield();
}

int CudaProducts::Prepare(const MatmulShape& shape) {
  const size_t before = products_.size();
  const int product = Add(shape);
  const PreparedProduct& by = products_[product].by;
  if (before < products_.size() && by.id < 0 && args_.driver->status().ok())
    args_.note(fmt::format("cuBLASLt refuses '{}' ({}): computed by piperun's own kernel",
                           ToText(shape), by.text));
  return product;
}

bool CudaProducts::Fuses(const MatmulShape& shape) {
  PP_CHECK(shape.epilogue != Epilogue::kNone);
  const GemmTable* gemms = args_.gemms;
  if (!args_.fuses_gelu || !MayFuse(shape)) return false;
  if (gemms != nullptr && gemms->Find(shape) == nullptr &&
      gemms->Find(WithoutEpilogue(shape)) != nullptr)
    return false;
  return products_[Add(shape)].by.id >= 0;
}

void CudaProducts::Multiply(int product, const MatmulArgs& args, CudaDriver::Stream stream) {
  const Product& one = products_[product];
  if (one.by.id >= 0 && IsAligned(one.shape, args))
    return args_.driver->Multiply(one.by.id, args, stream);
  args_.driver->Use();
  kernels::cuda::PlainMatmul({one.shape, args}, stream);
}

}  // namespace pp
