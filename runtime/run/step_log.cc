#include "runtime/run/step_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

namespace pp {
namespace {

std::string Duration(double seconds) {
  const auto all = static_cast<int64_t>(std::llround(seconds));
  const int64_t hours = all / 3600, minutes = all / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, all % 60)
                   : fmt::format("{}:{:02}", minutes, all % 60);
}

// That of a skipped step is no number.
bool HasNorm(const StepReport& report) {
  return report.grad_norm && std::isfinite(*report.grad_norm);
}

}  // namespace

std::string ToJson(const StepReport& report) {
  return fmt::format(
      R"({{"step":{},"loss":{:.9g},"grad_norm":{},"lr":{:.9g},"step_seconds":{:.6g},)"
      R"("tokens_per_second":{:.6g},"peak_bytes":[{}]{}{}}})"
      "\n",
      report.step, report.loss,
      HasNorm(report) ? fmt::format("{:.9g}", *report.grad_norm) : std::string("null"),
      report.learning_rate, report.seconds, report.tokens_per_second,
      fmt::join(report.peak_bytes, ","),
      report.loss_scale
          ? fmt::format(R"(,"loss_scale":{:.9g},"skipped":{})", *report.loss_scale, report.skipped)
          : "",
      report.val_loss ? fmt::format(R"(,"val_loss":{:.9g})", *report.val_loss) : "");
}

std::string ToLine(const StepReport& report, double seconds) {
  const double left = seconds * static_cast<double>(report.steps - report.step);
  return fmt::format("step {}/{}  loss {:.4f}  {}{}{}lr {:.3g}  {:.0f} tok/s  {} left\n",
                     report.step, report.steps, report.loss,
                     report.val_loss ? fmt::format("val {:.4f}  ", *report.val_loss) : "",
                     HasNorm(report) ? fmt::format("norm {:.2f}  ", *report.grad_norm) : "",
                     report.loss_scale ? fmt::format("scale {:.9g}{}  ", *report.loss_scale,
                                                     report.skipped ? ", skipped" : "")
                                       : "",
                     report.learning_rate, report.tokens_per_second, Duration(left));
}

}  // namespace pp
