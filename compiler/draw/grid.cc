#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "compiler/draw.h"

namespace pp {
namespace {

// The letter of a compute instruction in a grid; 0 for what is not drawn.
char LetterOf(Op op) {
  switch (op) {
    case Op::kForward:
      return 'F';
    case Op::kForwardDrop:
      return 'C';
    case Op::kRecompute:
      return 'R';
    case Op::kBackward:
      return 'B';
    case Op::kBackwardInput:
      return 'I';
    case Op::kBackwardWeight:
      return 'W';
    default:
      return 0;
  }
}

std::string CellOf(const Instruction& i, bool several) {
  return several ? fmt::format("{}{}{}", i.stage, LetterOf(i.op), i.micro)
                 : fmt::format("{}{}", LetterOf(i.op), i.micro);
}

}  // namespace

std::string Grid(const Program& program, const Execution& execution) {
  const bool several = program.stages > program.devices;
  double unit = 0;
  size_t width = 2;
  for (int d = 0; d < program.devices; ++d) {
    const auto& list = program.lists[d].body;
    for (size_t i = 0; i < list.size(); ++i) {
      if (LetterOf(list[i].op) == 0) continue;
      const Span& span = execution.spans[d][i];
      if (span.end > span.start)
        unit = unit == 0 ? span.end - span.start : std::min(unit, span.end - span.start);
      width = std::max(width, CellOf(list[i], several).size());
    }
  }
  if (unit == 0) unit = 1;
  const auto columns = static_cast<size_t>(std::lround(execution.makespan / unit));
  const size_t name = fmt::format("d{}", program.devices - 1).size();
  std::string out;
  for (int d = 0; d < program.devices; ++d) {
    std::vector<std::string> cells(columns, ".");
    const auto& list = program.lists[d].body;
    for (size_t i = 0; i < list.size(); ++i) {
      if (LetterOf(list[i].op) == 0) continue;
      const auto begin = static_cast<size_t>(std::lround(execution.spans[d][i].start / unit));
      const auto end = static_cast<size_t>(std::lround(execution.spans[d][i].end / unit));
      for (size_t column = begin; column < std::min(end, columns); ++column)
        cells[column] = column == begin ? CellOf(list[i], several) : std::string(width, '-');
    }
    out += fmt::format("{:<{}} |", fmt::format("d{}", d), name);
    for (const std::string& cell : cells) out += fmt::format(" {:>{}}", cell, width);
    out += '\n';
  }
  return out;
}

}  // namespace pp
