// The products' ceiling: a large product, by cuBLASLt's first choice of algorithm. Those of models
// are timed by piperun --tune-gemms.
#include <fmt/format.h>

#include <memory>

#include "kernels/workspace.h"
#include "runtime/device/cuda/cuda_driver.h"
#include "tests/kernels/gpu_speed.h"

namespace pp::kernels {

bool TimeLargeProduct(GpuTimer& timer) {
  constexpr int64_t kSide = 8192, kNumbers = kSide * kSide;
  constexpr char kName[] = "ceiling: a product 8192 x 8192 x 8192";
  const MatmulShape shape = {.m = kSide, .n = kSide, .k = kSide, .numbers = MatmulNumbers::kBf16};
  const int sets = timer.Sets(6.0 * kNumbers);
  const Operand<BFloat16> left(sets, kNumbers), right(sets, kNumbers), to(sets, kNumbers);
  const Operand<float> workspace(1, cuda::kProductBytes / 4);
  const auto args = [&](int i) -> MatmulArgs { return {.a = left[i], .b = right[i], .c = to[i]}; };
  const std::unique_ptr<CudaDriver> driver = MakeCudaDriver(0);
  driver->BeginProducts(reinterpret_cast<std::byte*>(workspace[0]));
  const PreparedProduct product = driver->Prepare(shape, nullptr, args(0), nullptr);
  if (product.id >= 0)
    timer.Time(kName, 2.0 * kNumbers * kSide, Unit::kTeraflops,
               [&](int i) { driver->Multiply(product.id, args(i), nullptr); });
  fmt::print("  '{}': {}\n", ToText(shape), product.text);
  if (product.id >= 0 && driver->status().ok()) return true;
  fmt::print("{:<50} WRONG {} {}\n", kName, product.text, driver->status().message());
  return false;
}

}  // namespace pp::kernels
