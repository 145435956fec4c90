#include "compiler/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

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

std::string JsonOf(const Instruction& i) {
  std::string out = fmt::format(R"({{"op":"{}")", Info(i.op).text);
  auto to = std::back_inserter(out);
  if (i.op == Op::kWait) fmt::format_to(to, R"(,"value":"{}")", Info(i.value).text);
  if (i.stage >= 0) fmt::format_to(to, R"(,"stage":{})", i.stage);
  if (i.micro >= 0) fmt::format_to(to, R"(,"micro":{})", i.micro);
  if (i.bucket >= 0) fmt::format_to(to, R"(,"bucket":{})", i.bucket);
  if (i.pipe >= 0) fmt::format_to(to, R"(,"pipe":{})", i.pipe);
  if (i.peer >= 0) fmt::format_to(to, R"(,"peer":{})", i.peer);
  if (i.version >= 0) fmt::format_to(to, R"(,"version":{})", i.version);
  if (i.sent) out += R"(,"sent":true)";
  if (i.overlap) out += R"(,"overlap":true)";
  return out + "}";
}

std::string JsonOf(const std::vector<Instruction>& list) {
  std::string out = "[";
  for (const Instruction& i : list) {
    if (out.size() > 1) out += ',';
    out += JsonOf(i);
  }
  return out + "]";
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

std::string ShowJson(const Program& program) {
  std::string out = fmt::format(
      R"({{"scheme":{},"passes":{},"p2p":"{}","devices":{},"stages":{},"microbatches":{},"pipes":[)",
      nlohmann::json(program.scheme).dump(), nlohmann::json(program.passes).dump(),
      program.p2p == P2p::kAsync ? "async" : "blocking", program.devices, program.stages,
      program.microbatches);
  for (size_t p = 0; p < program.pipes.size(); ++p)
    out += fmt::format(R"({}{{"device_of":[{}]}})", p > 0 ? "," : "",
                       fmt::join(program.pipes[p].device_of, ","));
  out += fmt::format(R"(],"pipe_of":[{}],)", fmt::join(program.pipe_of, ","));
  out += fmt::format(R"("replicas":{},"zero":{},"lists":[)", program.replicas, program.zero);
  for (int d = 0; d < program.devices; ++d) {
    const DeviceList& list = program.lists[d];
    out += fmt::format(R"({}{{"device":{},"prologue":)", d > 0 ? ",\n" : "\n", d);
    out += JsonOf(list.prologue) + R"(,"body":)" + JsonOf(list.body) + R"(,"epilogue":)" +
           JsonOf(list.epilogue) + "}";
  }
  return out + "]}\n";
}

}  // namespace pp
