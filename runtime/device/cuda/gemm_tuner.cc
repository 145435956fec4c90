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

constexpr int kMostAlgorithms = 128;
// However long they take, the library's first ones are timed; the others while there is time.
constexpr int kSureAlgorithms = 16;
constexpr double kSecondsPerShape = 0.5;
// First all by one round, then the best by the median of several.
constexpr int kRounds = 7;
constexpr size_t kFinalists = 4;
constexpr double kCoarseSeconds = 1e-3, kRoundSeconds = 0.01;
constexpr int kLeastLaunches = 2, kMostLaunches = 100;  // of a round
constexpr int64_t kPatternBytes = int64_t{1} << 20;
// Sets of operands that a launch finds in no cache: several times the largest L2.
constexpr int64_t kRotatedBytes = int64_t{256} << 20;
constexpr int64_t kMostSets = 16;

int64_t Up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

// The operands of one shape: sets of them, each at its own distance from the one before.
struct Sets {
  explicit Sets(const MatmulShape& shape) : one(shape) {
    const bool has_aux = shape.epilogue != Epilogue::kNone;
    const bool has_residual = shape.residual == kernels::WithResidual::kYes;
    for (int64_t* bytes : {&one.a, &one.b, &one.c, &one.bias}) *bytes = Up(*bytes, 256);
    aux = has_aux ? one.c : 0, residual = has_residual ? one.c : 0;
    const int64_t all = one.a + one.b + one.c + one.bias + aux + residual;
    count = std::clamp((kRotatedBytes + all - 1) / all, int64_t{1}, kMostSets);
  }

  OperandBytes one;
  int64_t aux = 0, residual = 0;
  int64_t count = 1;
};

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
        start_(driver_.MakeEvent()),
        begin_(driver_.MakeEvent()),
        end_(driver_.MakeEvent()) {}

  // Memory for operands of any of the shapes.
  Status Take(const std::vector<MatmulShape>& shapes) {
    int64_t a = 0, b = 0, c = 0, aux = 0, residual = 0, bias = 0;
    for (const MatmulShape& shape : shapes)
      for (const MatmulShape& each : {shape, WithoutEpilogue(shape)}) {
        const Sets sets(each);
        a = std::max(a, sets.count * sets.one.a), b = std::max(b, sets.count * sets.one.b);
        c = std::max(c, sets.count * sets.one.c), bias = std::max(bias, sets.count * sets.one.bias);
        aux = std::max(aux, sets.count * sets.aux);
        residual = std::max(residual, sets.count * sets.residual);
      }
    Result<std::byte*> workspace = driver_.Allocate(kernels::cuda::kProductBytes);
    PP_RETURN_IF_ERROR(workspace.status());
    driver_.BeginProducts(*workspace);
    PP_RETURN_IF_ERROR(MakePattern());
    PP_RETURN_IF_ERROR(TakeNumbers(a, &a_));
    PP_RETURN_IF_ERROR(TakeNumbers(b, &b_));
    PP_RETURN_IF_ERROR(TakeNumbers(c, &c_));
    PP_RETURN_IF_ERROR(TakeNumbers(aux, &aux_));
    PP_RETURN_IF_ERROR(TakeNumbers(residual, &residual_));
    return TakeNumbers(bias, &bias_);
  }

  Result<Choice> Fastest(const MatmulShape& shape) {
    Choice choice = {.shape = shape, .text = "no algorithm"};
    Result<std::vector<Timed>> timed = All(shape, &choice);
    PP_RETURN_IF_ERROR(timed.status());
    if (timed->empty()) return choice;
    choice.of = timed->size();
    // The library's first choice is among the finalists, for comparison.
    std::stable_sort(timed->begin() + 1, timed->end(),
                     [](const Timed& x, const Timed& y) { return x.seconds < y.seconds; });
    timed->resize(std::min(timed->size(), kFinalists + 1));
    for (Timed& each : *timed) {
      const Result<double> seconds = Median(each.seconds, [&](int64_t launch) {
        driver_.Multiply(each.product.id, ArgsOf(shape, launch), stream_);
      });
      PP_RETURN_IF_ERROR(seconds.status());
      if (choice.best == 0) choice.first = *seconds;
      if (choice.best > 0 && *seconds >= choice.seconds) continue;
      choice.seconds = *seconds, choice.best = each.index, choice.algorithm = each.algorithm;
      choice.text = each.product.text;
    }
    return choice;
  }

  // The time of the separate kernel that the epilogue replaces.
  Result<double> KernelSeconds(const MatmulShape& shape) {
    const auto run = [&](int64_t launch) { RunEpilogue(shape, ArgsOf(shape, launch), stream_); };
    const Result<double> once = Coarse(kCoarseSeconds, run);
    PP_RETURN_IF_ERROR(once.status());
    return Median(*once, run);
  }

 private:
  struct Timed {
    GemmAlgorithm algorithm;
    PreparedProduct product;
    size_t index = 0;  // from 1
    double seconds = 0;
  };

  // All algorithms that compute the shape, as far as time allows, with one round's time; or why
  // the first one does not, in the choice's text.
  Result<std::vector<Timed>> All(const MatmulShape& shape, Choice* choice) {
    const std::vector<GemmAlgorithm> algorithms = driver_.Algorithms(shape, kMostAlgorithms);
    PP_RETURN_IF_ERROR(driver_.status());
    std::vector<Timed> timed;
    driver_.Record(start_, stream_);
    for (size_t i = 0; i < algorithms.size(); ++i) {
      if (i >= kSureAlgorithms && !timed.empty() &&
          driver_.SecondsBetween(start_, end_) > kSecondsPerShape)
        break;
      const PreparedProduct product =
          driver_.Prepare(shape, &algorithms[i], ArgsOf(shape, 0), stream_);
      PP_RETURN_IF_ERROR(driver_.status());
      if (product.id < 0) {
        if (timed.empty()) choice->text = product.text;
        continue;
      }
      const Result<double> seconds = Coarse(
          timed.empty() ? kCoarseSeconds : timed[0].seconds,
          [&](int64_t launch) { driver_.Multiply(product.id, ArgsOf(shape, launch), stream_); });
      PP_RETURN_IF_ERROR(seconds.status());
      timed.push_back({algorithms[i], product, timed.size() + 1, *seconds});
    }
    return timed;
  }

  kernels::MatmulArgs ArgsOf(const MatmulShape& shape, int64_t launch) const {
    const Sets sets(shape);
    const int64_t set = launch % sets.count;
    return {.a = a_ + set * sets.one.a,
            .b = b_ + set * sets.one.b,
            .c = c_ + set * sets.one.c,
            .bias = reinterpret_cast<const float*>(bias_ + set * sets.one.bias),
            .residual = residual_ + set * sets.residual,
            .aux = aux_ + set * sets.aux};
  }

  // For one launch, by one round; `expected`: seconds of one, roughly.
  template <typename F>
  Result<double> Coarse(double expected, const F& run) {
    driver_.Use();
    run(0);
    return Round(kCoarseSeconds, expected, run);
  }

  template <typename F>
  Result<double> Median(double expected, const F& run) {
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
      const Result<double> seconds = Round(kRoundSeconds, expected, run);
      PP_RETURN_IF_ERROR(seconds.status());
      rounds.push_back(*seconds);
    }
    std::sort(rounds.begin(), rounds.end());
    return rounds[kRounds / 2];
  }

  // Many launches between two events.
  template <typename F>
  Result<double> Round(double whole, double expected, const F& run) {
    const double fit = whole / std::max(expected, whole / kMostLaunches);
    const int launches = std::clamp(static_cast<int>(fit), kLeastLaunches, kMostLaunches);
    driver_.Use();
    driver_.Record(begin_, stream_);
    for (int i = 0; i < launches; ++i) run(next_++);
    driver_.Record(end_, stream_);
    PP_RETURN_IF_ERROR(Finish());
    return driver_.SecondsBetween(begin_, end_) / launches;
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

  // Whole patterns.
  Status TakeNumbers(int64_t bytes, std::byte** out) {
    bytes = Up(bytes, kPatternBytes);
    if (bytes == 0) return {};
    Result<std::byte*> taken = driver_.Allocate(bytes);
    PP_RETURN_IF_ERROR(taken.status());
    for (int64_t at = 0; at < bytes; at += kPatternBytes)
      driver_.Copy(*taken + at, pattern_, kPatternBytes, stream_);
    *out = *taken;
    return {};
  }

  CudaDriver& driver_;
  const CudaDriver::Stream stream_;
  const CudaDriver::Event start_, begin_, end_;  // of a shape, of a round
  std::byte* pattern_ = nullptr;
  // Of the first sets.
  std::byte *a_ = nullptr, *b_ = nullptr, *c_ = nullptr;
  std::byte *aux_ = nullptr, *residual_ = nullptr, *bias_ = nullptr;
  int64_t next_ = 0;  // launch, and so set
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
