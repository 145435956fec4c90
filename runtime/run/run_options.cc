#include "runtime/run/run_options_table.h"

namespace pp {

bool DecidesNumbers(Decides decides, const RunOptions& options) {
  const bool cosine = options.optimizer.cosine, by_epochs = options.epochs > 0;
  switch (decides) {
    case Decides::kOwn:
    case Decides::kAgreed:
      return false;
    case Decides::kNumbers:
      return true;
    case Decides::kCosine:
      return cosine;
    case Decides::kCosineSteps:
      return cosine && !by_epochs;
    case Decides::kCosineEpochs:
      return cosine && by_epochs;
  }
  PP_CHECK(false);
}

Status ReadWhole(const OptionValues& values, const std::string& text, int64_t* number) {
  *number = 0;
  if (values.zero != nullptr && text == values.zero) return {};
  if (ReadNumber(text, number) && *number >= values.least && *number <= values.most) return {};
  const std::string range = values.most == INT64_MAX && values.zero != nullptr
                                ? fmt::format("from {}", values.least)
                                : fmt::format("from {} to {}", values.least, values.most);
  return Status::Invalid(
      fmt::format("'{}' ({}a whole number {})", Shown(text),
                  values.zero == nullptr ? "" : fmt::format("{}, or ", values.zero), range));
}

Status ReadReal(const OptionValues& values, const std::string& text, double* number) {
  if (ReadNumber(text, number) && std::isfinite(*number) && values.allows(*number)) return {};
  return Status::Invalid(fmt::format("'{}' ({})", Shown(text), values.right));
}

}  // namespace pp
