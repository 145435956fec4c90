// The products' part, by cuBLASLt's first choices: those of the two sizes of GPT-2 and of a LLaMA
// whose training tools/gpu_check times, each forward, input gradient and weight gradient.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "kernels/workspace.h"
#include "runtime/device/cuda/cuda_driver.h"
#include "tests/kernels/gpu_speed.h"

namespace pp::kernels {
namespace {

constexpr int64_t kRows = 16384;
constexpr int64_t kRowStride = 50304;  // of logits

struct Linear {
  const char* name;
  int64_t in, out;
  Epilogue forward = Epilogue::kNone, input_gradient = Epilogue::kNone;
};

class Products {
 public:
  explicit Products(GpuTimer& timer) : timer_(timer) {}

  bool right() const { return right_; }

  void Time(const std::string& name, const MatmulShape& shape) {
    const MatmulShape whole = Whole(shape);
    const bool sums = shape.numbers == MatmulNumbers::kBf16Sum,
               tn = shape.operands == Operands::kTN;
    const int64_t a = (tn ? shape.k : shape.m) * whole.lda, c = shape.m * whole.ldc;
    const double bytes = 2.0 * static_cast<double>(a + NumbersOfB(shape)) + (sums ? 4.0 : 2.0) * c;
    const int sets = timer_.Sets(bytes);
    const Operand<BFloat16> left(sets, a), right(sets, NumbersOfB(shape));
    std::optional<Operand<BFloat16>> to, aux;
    std::optional<Operand<float>> sum;
    sums ? void(sum.emplace(sets, c)) : void(to.emplace(sets, c));
    if (shape.epilogue != Epilogue::kNone) aux.emplace(sets, c);
    const Operand<float> workspace(1, cuda::kProductBytes / 4);
    const auto args = [&](int i) -> MatmulArgs {
      return {.a = left[i],
              .b = right[i],
              .c = sum ? static_cast<void*>((*sum)[i]) : (*to)[i],
              .aux = aux ? (*aux)[i] : nullptr};
    };
    const std::unique_ptr<CudaDriver> driver = MakeCudaDriver(0);
    driver->BeginProducts(reinterpret_cast<std::byte*>(workspace[0]));
    const PreparedProduct product = driver->Prepare(shape, nullptr, args(0), nullptr);
    if (product.id >= 0)
      timer_.Time(name, 2.0 * static_cast<double>(shape.m * shape.n * shape.k), Unit::kTeraflops,
                  [&](int i) { driver->Multiply(product.id, args(i), nullptr); });
    fmt::print("  '{}': {}\n", ToText(shape), product.text);
    if (product.id >= 0 && driver->status().ok()) return;
    fmt::print("{:<50} WRONG {} {}\n", name, product.text, driver->status().message());
    right_ = false;
  }

  void TimeLinear(const std::string& model, const Linear& linear) {
    const std::string of =
        fmt::format("{} {} {} x {}, ", model, linear.name, linear.in, linear.out);
    const MatmulShape forward = {
        .m = kRows, .n = linear.out, .k = linear.in, .numbers = MatmulNumbers::kBf16};
    Time(of + "forward", forward);
    if (linear.forward != Epilogue::kNone) {
      MatmulShape with = forward;
      with.epilogue = linear.forward;
      Time(of + "forward, GELU", with);
    }
    const MatmulShape input = {.m = kRows,
                               .n = linear.in,
                               .k = linear.out,
                               .operands = Operands::kNT,
                               .numbers = MatmulNumbers::kBf16};
    Time(of + "input gradient", input);
    if (linear.input_gradient != Epilogue::kNone) {
      MatmulShape with = input;
      with.epilogue = linear.input_gradient;
      Time(of + "input gradient, GELU", with);
    }
    Time(of + "weight gradient", {.m = linear.in,
                                  .n = linear.out,
                                  .k = kRows,
                                  .operands = Operands::kTN,
                                  .update = Update::kAdd,
                                  .numbers = MatmulNumbers::kBf16Sum});
  }

  // Of a vocabulary, and of one that may suit cuBLASLt better.
  void TimeHead(const std::string& model, int64_t width, int64_t vocabulary) {
    const std::string of = fmt::format("{} head {} x {}, ", model, width, vocabulary);
    Time(of + "forward", {.m = kRows,
                          .n = vocabulary,
                          .k = width,
                          .operands = Operands::kNT,
                          .ldc = kRowStride,
                          .numbers = MatmulNumbers::kBf16});
    Time(of + "input gradient", {.m = kRows,
                                 .n = width,
                                 .k = vocabulary,
                                 .lda = kRowStride,
                                 .numbers = MatmulNumbers::kBf16});
    Time(of + "weight gradient", {.m = vocabulary,
                                  .n = width,
                                  .k = kRows,
                                  .operands = Operands::kTN,
                                  .update = Update::kAdd,
                                  .lda = kRowStride,
                                  .numbers = MatmulNumbers::kBf16Sum});
  }

 private:
  GpuTimer& timer_;
  bool right_ = true;
};

}  // namespace

bool TimeLargeProduct(GpuTimer& timer) {
  Products products(timer);
  products.Time("ceiling: a product 8192 x 8192 x 8192",
                {.m = 8192, .n = 8192, .k = 8192, .numbers = MatmulNumbers::kBf16});
  return products.right();
}

bool TimeProducts(GpuTimer& timer) {
  Products products(timer);
  const auto gpt2 = [&](const std::string& model, int64_t width) {
    for (const Linear& linear :
         {Linear{"qkv", width, 3 * width}, Linear{"proj", width, width},
          Linear{"fc", width, 4 * width, Epilogue::kGelu},
          Linear{"fc proj", 4 * width, width, Epilogue::kNone, Epilogue::kGeluBackward}})
      products.TimeLinear(model, linear);
    for (const int64_t vocabulary : {int64_t{kVocabulary}, kRowStride})
      products.TimeHead(model, width, vocabulary);
  };
  gpt2("124M", 768);
  gpt2("1.5B", 1600);
  for (const Linear& linear : {Linear{"qkv", 2048, 3072}, Linear{"out", 2048, 2048},
                               Linear{"gate up", 2048, 16384}, Linear{"down", 8192, 2048}})
    products.TimeLinear("LLaMA 1B", linear);
  products.TimeHead("LLaMA 1B", 2048, kVocabulary);
  return products.right();
}

}  // namespace pp::kernels
