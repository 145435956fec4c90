// The picture for terminals.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "compiler/draw.h"
#include "compiler/draw/picture.h"

namespace pp {
namespace {

// A wider picture is useless.
constexpr double kMostColumns = 10000;

struct Cell {
  std::string text;      // empty: nothing runs
  int colour = 0;        // of a terminal's 256
  bool goes_on = false;  // continues the instruction of the previous cell
};
using Row = std::vector<Cell>;

// The shortest duration of an instruction: one column.
double Unit(const Program& program, const Execution& execution) {
  double unit = 0;
  for (int d = 0; d < program.devices; ++d)
    for (size_t i = 0; i < program.lists[d].body.size(); ++i) {
      const double length = execution.spans[d][i].end - execution.spans[d][i].start;
      if (Info(program.lists[d].body[i].op).letter == 0 || length <= 0) continue;
      unit = unit == 0 ? length : std::min(unit, length);
    }
  return unit == 0 ? 1 : unit;
}

Row RowOf(const Program& program, const Execution& execution, const Shades& shades, int device,
          double unit) {
  const bool several = program.stages > program.devices;
  Row row(std::lround(execution.makespan / unit));
  const auto& list = program.lists[device].body;
  for (size_t i = 0; i < list.size(); ++i) {
    const char letter = Info(list[i].op).letter;
    if (letter == 0) continue;
    const Shade shade = shades.Of(device, list[i]);
    const Style& style = StyleOf(list[i].op);
    const int colour = shade.number % 2 == 0 ? style.terminal : style.terminal_dark;
    const auto begin = static_cast<size_t>(std::lround(execution.spans[device][i].start / unit));
    const auto end = static_cast<size_t>(std::lround(execution.spans[device][i].end / unit));
    if (begin >= std::min(end, row.size())) continue;
    std::string text = several ? fmt::format("{}{}{}", list[i].stage, letter, list[i].micro)
                               : fmt::format("{}{}", letter, list[i].micro);
    // Two that run as one: "F3&B1".
    if (!row[begin].text.empty()) text = row[begin].text + "&" + text;
    for (size_t column = begin; column < std::min(end, row.size()); ++column)
      row[column] = {"-", colour, column > begin};
    row[begin].text = text;
  }
  return row;
}

std::string Text(const Row& row, size_t width, Paint paint) {
  std::string out;
  for (const Cell& cell : row) {
    const std::string text =
        cell.goes_on ? std::string(width, '-')
                     : fmt::format("{:>{}}", cell.text.empty() ? "." : cell.text, width);
    if (paint == Paint::kPlain || cell.colour == 0) {
      out += " " + text;
      continue;
    }
    // Black on the colour, which also fills the gap inside an instruction.
    const std::string start = fmt::format("\x1b[30;48;5;{}m", cell.colour);
    out += (cell.goes_on ? start + " " : " " + start) + text + "\x1b[0m";
  }
  return out;
}

}  // namespace

Result<std::string> Grid(const Program& program, const Execution& execution, Paint paint) {
  const double unit = Unit(program, execution);
  if (execution.makespan / unit > kMostColumns)
    return Status::Invalid(fmt::format(
        "--format grid: {:.0f} columns of {:g} (at most {}; svg and html have no columns)",
        execution.makespan / unit, unit, kMostColumns));
  const Shades shades(program);
  std::vector<Row> rows;
  size_t width = 2;
  for (int d = 0; d < program.devices; ++d) {
    rows.push_back(RowOf(program, execution, shades, d, unit));
    for (const Cell& cell : rows.back()) width = std::max(width, cell.text.size());
  }
  const size_t name = fmt::format("d{}", program.devices - 1).size();
  std::string out;
  for (int d = 0; d < program.devices; ++d)
    out += fmt::format("{:<{}} |{}\n", fmt::format("d{}", d), name, Text(rows[d], width, paint));
  return out;
}

}  // namespace pp
