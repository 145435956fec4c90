#include "schema/model/shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "schema/base/number.h"
#include "schema/base/split.h"

namespace pp {

int64_t Shapes::microbatches() const {
  int64_t all = 0;
  for (const Run& run : runs) all += run.microbatches;
  return all;
}

int64_t Shapes::sequences() const {
  int64_t all = 0;
  for (const Run& run : runs) all += int64_t{run.microbatches} * run.extent.sequences;
  return all;
}

int64_t Shapes::tokens() const {
  int64_t all = 0;
  for (const Run& run : runs) all += run.microbatches * run.extent.all();
  return all;
}

Extent Shapes::largest() const {
  return std::max_element(runs.begin(), runs.end(),
                          [](const Run& a, const Run& b) {
                            return std::tuple(a.extent.tokens, a.extent.sequences) <
                                   std::tuple(b.extent.tokens, b.extent.sequences);
                          })
      ->extent;
}

std::vector<int32_t> Shapes::ByMicrobatch() const {
  std::vector<int32_t> shape_of;
  for (size_t i = 0; i < runs.size(); ++i)
    shape_of.insert(shape_of.end(), runs[i].microbatches, static_cast<int32_t>(i));
  return shape_of;
}

Status ReadShapes(std::string_view text, Shapes* shapes) {
  shapes->runs.clear();
  if (text.empty()) return {};
  constexpr int64_t kMost = 1 << 24;  // micro-batches; program.h
  for (const std::string_view word : Split(text, ',')) {
    Shapes::Run run;
    int32_t* numbers[] = {&run.microbatches, &run.extent.tokens, &run.extent.sequences};
    const std::vector<std::string_view> parts = Split(word, 'x');
    bool right = parts.size() == 2 || parts.size() == 3;
    for (size_t i = 0; right && i < parts.size(); ++i)
      right = ReadNumber(parts[i], numbers[i]) && *numbers[i] > 0;
    shapes->runs.push_back(run);
    if (!right || shapes->microbatches() > kMost || shapes->runs.size() > kMostShapes)
      return Status::Invalid(fmt::format(
          "'{}' (micro-batches x tokens, perhaps x sequences: 8x1024,4x2048x2; up to {} of them)",
          Shown(std::string(text)), kMostShapes));
  }
  return {};
}

std::string TextOf(const Shapes& shapes) {
  std::string text;
  for (const auto& [microbatches, extent] : shapes.runs) {
    text += fmt::format("{}{}x{}", text.empty() ? "" : ",", microbatches, extent.tokens);
    if (extent.sequences > 1) text += fmt::format("x{}", extent.sequences);
  }
  return text;
}

}  // namespace pp
