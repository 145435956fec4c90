#include "schema/model/batch_ramp.h"

#include <fmt/format.h>

#include <algorithm>

#include "schema/base/number.h"
#include "schema/base/split.h"

namespace pp {

int32_t BatchRamp::Most() const {
  return std::max_element(
             stretches.begin(), stretches.end(),
             [](const auto& a, const auto& b) { return a.microbatches < b.microbatches; })
      ->microbatches;
}

Status ReadBatchRamp(std::string_view text, BatchRamp* ramp) {
  ramp->stretches.clear();
  if (text.empty()) return {};
  constexpr size_t kMost = 32;
  constexpr int64_t kMostSteps = 1'000'000'000'000;
  for (const std::string_view word : Split(text, ',')) {
    const size_t at = word.find('@');
    BatchRamp::Stretch stretch;
    const bool right =
        at != word.npos && ReadNumber(word.substr(0, at), &stretch.microbatches) &&
        ReadNumber(word.substr(at + 1), &stretch.from) && stretch.microbatches > 0 &&
        stretch.from <= kMostSteps && ramp->stretches.size() < kMost &&
        (ramp->stretches.empty() ? stretch.from == 0 : stretch.from > ramp->stretches.back().from);
    if (!right)
      return Status::Invalid(
          fmt::format("'{}' (micro-batches@steps before, ascending, the first @0: 16@0,32@1000; up "
                      "to {} of them, and 10^12 steps)",
                      Shown(std::string(text)), kMost));
    ramp->stretches.push_back(stretch);
  }
  return {};
}

std::string TextOf(const BatchRamp& ramp) {
  std::string text;
  for (const auto& [microbatches, from] : ramp.stretches)
    text += fmt::format("{}{}@{}", text.empty() ? "" : ",", microbatches, from);
  return text;
}

}  // namespace pp
