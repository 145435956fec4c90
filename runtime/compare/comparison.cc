#include "runtime/compare/comparison.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <new>
#include <utility>

#include "runtime/compare/one_device.h"

namespace pp {
namespace {

// For weights about a rounding error of the types that products take; for gradients far more: where
// rounding decides signs in the run, the noise must reliably flip some here.
Noise NoiseOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp32:
      return {.weights = 0x1p-22, .gradients = 0x1p-14};
    case Dtype::kBf16:
      return {.weights = 0x1p-8, .gradients = 0x1p-5};
    case Dtype::kFp16:
      return {.weights = 0x1p-11, .gradients = 0x1p-6};
  }
  PP_CHECK(false);
}
// Below this share of a value's size no difference counts: a sum whose errors cancel by chance.
double FloorOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp32:
      return 0x1p-24;
    case Dtype::kBf16:
      return 0x1p-9;
    case Dtype::kFp16:
      return 0x1p-12;
  }
  PP_CHECK(false);
}

// The ranks' shares of one value: each whole, or parts that are added.
using Shares = std::map<std::pair<int32_t, int32_t>, Fingerprint>;  // by copy and peer
using Values = std::map<ValueName, Shares>;

class Comparer {
 public:
  Comparer(const Program& program, int64_t steps_before, Comparison* result)
      : job_(*program.job), steps_before_(steps_before), result_(*result) {}

  // One step's; of a step in which the run has failed, what is available.
  enum class Step : uint8_t { kWhole, kFailed };
  Status Run(Step step, double learning_rate, const Values& run,
             const std::map<ValueName, Fingerprint>& one,
             const std::map<ValueName, Fingerprint>& noisy) {
    learning_rate_ = learning_rate;
    gradients_ = 0;
    for (const auto& [name, expected] : one) {
      const auto found = run.find(name);
      if (found == run.end()) {
        if (step == Step::kFailed) continue;
        return Wrong(name, "has no record");
      }
      for (const auto& [who, got] : found->second) {
        if (step == Step::kFailed && got.numbers < expected.numbers) continue;
        PP_RETURN_IF_ERROR(CompareOne(name, got, expected, noisy.at(name)));
      }
    }
    if (step == Step::kWhole && run.size() != one.size())
      return Status::Failed("--compare: the run has values that one device does not have");
    ++result_.steps;
    return {};
  }

 private:
  Status Wrong(const ValueName& name, const std::string& what) const {
    return Status::Failed(fmt::format("--compare: step {}: {} {}", steps_before_ + name.step,
                                      TextOf(name, job_), what));
  }

  Status CompareOne(const ValueName& name, const Fingerprint& got, const Fingerprint& expected,
                    const Fingerprint& noisy) {
    if (got.numbers != expected.numbers)
      return Wrong(name, fmt::format("has {} of {} elements", got.numbers, expected.numbers));
    const double size = std::sqrt(expected.squares);
    if (Overflowed(name, got, expected, noisy)) return {};
    if (!std::isfinite(size)) return Wrong(name, "is not finite on one device, either");
    if (!std::isfinite(got.squares)) return Wrong(name, "is not finite, unlike one device's");
    ++result_.values;
    const double difference = Distance(got, expected);
    double explained =
        std::max(Spread(name, size, Distance(noisy, expected)), FloorOf(job_.dtype) * size);
    // An element that moved the other way, by twice the learning rate, counts as 8 times this,
    // however few elements there are.
    if (name.what == Checked::kWeights) explained = std::max(explained, learning_rate_ / 4);
    if (difference == 0) return {};
    const double ratio = explained > 0 ? difference / explained : HUGE_VAL;
    if (ratio > result_.worst) {
      result_.worst = ratio;
      result_.worst_name =
          fmt::format("{} of step {}", TextOf(name, job_), steps_before_ + name.step);
    }
    if (ratio <= kCompareLimit) return {};
    return Wrong(name, fmt::format("differs from one device's by {:.1e} of its size (rounding "
                                   "explains {:.1e})",
                                   difference / size, explained / size));
  }

  // If the loss is scaled, gradients may overflow, in the run and on one device; or only with the
  // noise, which then does not say what rounding explains.
  bool Overflowed(const ValueName& name, const Fingerprint& got, const Fingerprint& expected,
                  const Fingerprint& noisy) const {
    if (!InfoOf(job_.dtype).scales_loss) return false;
    if (name.what == Checked::kAct || name.what == Checked::kLoss) return false;
    if (std::isfinite(got.squares) != std::isfinite(expected.squares)) return false;
    return !std::isfinite(got.squares) || !std::isfinite(noisy.squares);
  }

  // For a single number one difference says little. A norm cannot differ by more than the gradients
  // do; for losses, the largest relative difference of all steps so far.
  double Spread(const ValueName& name, double size, double here) {
    if (name.what == Checked::kSum) gradients_ += here * here;
    if (name.what == Checked::kNorm) return std::sqrt(gradients_);
    if (name.what != Checked::kLoss) return here;
    if (size > 0) losses_ = std::max(losses_, here / size);
    return losses_ * size;
  }

  const Job& job_;
  const int64_t steps_before_;
  Comparison& result_;
  double gradients_ = 0;      // of this step, the square of the distance between the two runs
  double losses_ = 0;         // so far, relatively
  double learning_rate_ = 0;  // of this step
};

}  // namespace

Status Compare(const Program& program, const TrainOptions& options, const TrainReport& report,
               Comparison* result) {
  const OneDevice::Args plain{.program = &program,
                              .inputs = report.inputs.get(),
                              .weights = options.weights,
                              .adapter = options.adapter,
                              .threads = options.threads};
  OneDevice::Args disturbed = plain;
  disturbed.noise = NoiseOf(program.job->dtype);
  Comparer comparer(program, report.inputs->steps_before(), result);
  try {
    std::map<int64_t, Values> run;  // by step
    for (const ValueRecord& record : report.records)
      run[record.name.step][record.name][{record.copy, record.peer}].Add(record.print);
    auto one = OneDevice::Make(plain);
    PP_RETURN_IF_ERROR(one.status().In("--compare"));
    auto noisy = OneDevice::Make(disturbed);
    PP_RETURN_IF_ERROR(noisy.status().In("--compare"));
    const int64_t whole = report.last_step - report.inputs->steps_before();
    for (const auto& [step, values] : run) {
      std::map<ValueName, Fingerprint> of_one, of_noisy;
      PP_RETURN_IF_ERROR(
          (*one)->Step(step, [&](const ValueRecord& r) { of_one[r.name] = r.print; }));
      PP_RETURN_IF_ERROR(
          (*noisy)->Step(step, [&](const ValueRecord& r) { of_noisy[r.name] = r.print; }));
      PP_RETURN_IF_ERROR(comparer.Run(
          step <= whole ? Comparer::Step::kWhole : Comparer::Step::kFailed,
          LearningRate(report.inputs->optimizer(), report.inputs->steps_before() + step), values,
          of_one, of_noisy));
    }
  } catch (const std::bad_alloc&) {
    return Status::Failed("--compare: out of memory");
  }
  return {};
}

std::string ToText(const Comparison& comparison) {
  const char* same = comparison.values == 0 ? "(nothing to compare)" : "have the same bits";
  return fmt::format(
      "compared with one device: {} values of {} steps {}\n", comparison.values, comparison.steps,
      comparison.worst_name.empty()
          ? same
          : fmt::format("differ by {:.1f} times what rounding explains, at most (limit {:.0f}; {})",
                        comparison.worst, kCompareLimit, comparison.worst_name));
}

}  // namespace pp
