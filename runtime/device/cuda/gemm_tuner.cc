#include "runtime/device/cuda/gemm_tuner.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <random>

#include "kernels/workspace.h"
#include "runtime/device/cuda/products.h"

namespace pp {
namespace {

using kernels::Epilogue;
using kernels::MatmulShape;

constexpr int kMostAlgorithms = 16;
constexpr int kRounds = 3, kRunsPerRound = 5;  // after one that does not count
constexpr int64_t kPatternBytes = int64_t{1} << 20;

// As whole patterns: copies may go past an operand's end, too.
int64_t Up(int64_t bytes) { return (bytes + kPatternBytes - 1) / kPatternBytes * kPatternBytes; }

struct Choice {
  MatmulShape shape;
  GemmAlgorithm algorithm;
  double first = 0, seconds = 0;  // of the library's first choice, of the best
  size_t best = 0, of = 0;        // its index, and how many there are; 0: it is refused
  std::string text;               // of the best; or why it is refused
};

class Tuner {
 public:
  explicit Tuner(CudaDriver* driver)
      : driver_(*driver),
        stream_(driver_.MakeStream()),
        begin_(driver_.MakeEvent()),
        end_(driver_.MakeEvent()) {}

  // Memory for operands of any of the shapes.
  Status Take(const std::vector<MatmulShape>& shapes) {
    int64_t a = 0, b = 0, c = 0, like_c = 0, bias = 0;
    for (const MatmulShape& shape : shapes) {
      const OperandBytes sizes(shape);
      a = std::max(a, sizes.a), b = std::max(b, sizes.b), c = std::max(c, sizes.c);
      bias = std::max(bias, sizes.bias);
      if (shape.epilogue != Epilogue::kNone || shape.residual == kernels::WithResidual::kYes)
        like_c = std::max(like_c, sizes.c);
    }
    Result<std::byte*> workspace = driver_.Allocate(kernels::cuda::kProductBytes);
    PP_RETURN_IF_ERROR(workspace.status());
    driver_.BeginProducts(*workspace);
    PP_RETURN_IF_ERROR(MakePattern());
    PP_RETURN_IF_ERROR(TakeNumbers(a, &args_.a));
    PP_RETURN_IF_ERROR(TakeNumbers(b, &args_.b));
    PP_RETURN_IF_ERROR(TakeNumbers(c, &args_.c));
    PP_RETURN_IF_ERROR(TakeNumbers(like_c, &args_.aux));
    PP_RETURN_IF_ERROR(TakeNumbers(like_c, &args_.residual));
    return TakeNumbers(bias, &args_.bias);
  }

  Result<Choice> Fastest(const MatmulShape& shape) {
    const std::vector<GemmAlgorithm> algorithms = driver_.Algorithms(shape, kMostAlgorithms);
    PP_RETURN_IF_ERROR(driver_.status());
    Choice choice = {.shape = shape, .text = "no algorithm"};
    for (const GemmAlgorithm& algorithm : algorithms) {
      const PreparedProduct product = driver_.Prepare(shape, &algorithm, args_, stream_);
      PP_RETURN_IF_ERROR(driver_.status());
      if (product.id < 0) {
        if (choice.of == 0) choice.text = product.text;
        continue;
      }
      const Result<double> seconds = Seconds([&] { driver_.Multiply(product.id, args_, stream_); });
      PP_RETURN_IF_ERROR(seconds.status());
      if (choice.of == 0) choice.first = *seconds;
      if (choice.of++ > 0 && *seconds >= choice.seconds) continue;
      choice.seconds = *seconds, choice.best = choice.of, choice.algorithm = algorithm;
      choice.text = product.text;
    }
    return choice;
  }

  // The time of the separate kernel that the epilogue replaces.
  Result<double> KernelSeconds(const MatmulShape& shape) {
    return Seconds([&] { RunEpilogue(shape, args_, stream_); });
  }

 private:
  // For one run, the best of several rounds.
  template <typename F>
  Result<double> Seconds(const F& run) {
    driver_.Use();
    run();
    double best = 0;
    for (int round = 0; round < kRounds; ++round) {
      driver_.Record(begin_, stream_);
      for (int i = 0; i < kRunsPerRound; ++i) run();
      driver_.Record(end_, stream_);
      PP_RETURN_IF_ERROR(Finish());
      const double seconds = driver_.SecondsBetween(begin_, end_) / kRunsPerRound;
      best = round == 0 ? seconds : std::min(best, seconds);
    }
    return best;
  }

  Status Finish() {
    while (!driver_.Reached(end_) && driver_.status().ok()) sched_yield();
    return driver_.status();
  }

  // As bf16 and fp32 they are +-[0.5, 1), as fp16 +-[1.75, 1.9): zeros would take a GPU less power,
  // and so less time.
  Status MakePattern() {
    Result<std::byte*> pinned = driver_.TakePinned(kPatternBytes);
    PP_RETURN_IF_ERROR(pinned.status());
    pattern_ = *pinned;
    std::mt19937 random(1);
    auto* halves = reinterpret_cast<uint16_t*>(pattern_);
    for (int64_t i = 0; i < kPatternBytes / 2; ++i)
      halves[i] = static_cast<uint16_t>((random() & 0x807f) | 0x3f00);
    return {};
  }

  template <typename T>
  Status TakeNumbers(int64_t bytes, T** out) {
    if (bytes == 0) return {};
    Result<std::byte*> taken = driver_.Allocate(Up(bytes));
    PP_RETURN_IF_ERROR(taken.status());
    for (int64_t at = 0; at < Up(bytes); at += kPatternBytes)
      driver_.Copy(*taken + at, pattern_, kPatternBytes, stream_);
    *out = reinterpret_cast<T*>(*taken);
    return {};
  }

  CudaDriver& driver_;
  const CudaDriver::Stream stream_;
  const CudaDriver::Event begin_, end_;
  std::byte* pattern_ = nullptr;
  kernels::MatmulArgs args_;
};

}  // namespace

Result<TunedGemms> TuneGemms(CudaDriver* driver, const std::vector<MatmulShape>& shapes,
                             const CudaExperiments& experiments) {
  TunedGemms tuned = {.table = GemmTable(driver->machine()), .lines = {}};
  Tuner tuner(driver);
  PP_RETURN_IF_ERROR(tuner.Take(shapes));
  std::vector<MatmulShape> refused;
  for (const MatmulShape& shape : shapes) {
    Result<Choice> choice = tuner.Fastest(WithoutEpilogue(shape));
    PP_RETURN_IF_ERROR(choice.status());
    double kernel = 0;
    if (shape.epilogue != Epilogue::kNone && experiments.fuses_gelu && MayFuse(shape)) {
      const Result<Choice> fused = tuner.Fastest(shape);
      PP_RETURN_IF_ERROR(fused.status());
      const Result<double> seconds = tuner.KernelSeconds(shape);
      PP_RETURN_IF_ERROR(seconds.status());
      kernel = *seconds;
      if (fused->of > 0 && (choice->of == 0 || fused->seconds <= choice->seconds + kernel))
        choice = fused, kernel = 0;
    }
    if (choice->of == 0) {
      if (std::find(refused.begin(), refused.end(), choice->shape) != refused.end()) continue;
      refused.push_back(choice->shape);
      tuned.lines.push_back(fmt::format("{:<64} refused ({}): computed by piperun's own kernel",
                                        ToText(choice->shape), choice->text));
      continue;
    }
    if (tuned.table.Find(choice->shape) != nullptr) continue;
    tuned.table.Add(choice->shape, choice->algorithm, 1e6 * choice->seconds);
    tuned.lines.push_back(fmt::format("{:<64} {:8.1f} us, {} of {}; the first {:.1f} us",
                                      ToText(choice->shape), 1e6 * choice->seconds, choice->best,
                                      choice->of, 1e6 * choice->first));
    if (kernel > 0)
      tuned.lines.back() += fmt::format("; without its GELU, {:.1f} us", 1e6 * kernel);
    tuned.lines.back() += "; " + choice->text;
  }
  return tuned;
}

}  // namespace pp
