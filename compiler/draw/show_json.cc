#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "compiler/draw.h"

namespace pp {
namespace {

std::string JsonOf(const Instruction& i) {
  std::string out = fmt::format(R"({{"op":"{}")", Info(i.op).text);
  ForEachField([&]<typename T>(const FieldInfo<T>& info) {
    if (!IsSet(i, info)) return;
    const auto to = std::back_inserter(out);
    if constexpr (std::is_same_v<T, Kind>) {
      fmt::format_to(to, R"(,"{}":"{}")", info.name, Info(i.*info.member).text);
    } else {
      fmt::format_to(to, R"(,"{}":{})", info.name, i.*info.member);
    }
  });
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

std::string ShowJson(const Program& program) {
  std::string out = fmt::format(R"({{"scheme":{},"devices":{},"stages":{},"microbatches":{},)",
                                nlohmann::json(program.scheme).dump(), program.devices,
                                program.stages, program.microbatches);
  ForEachRow(kProgramAttributes<Program>, [&]<typename T>(const Attribute<Program, T>& row) {
    const std::string text = TextOf(row, program.*row.member);
    out += fmt::format(R"("{}":{},)", row.text,
                       std::is_same_v<T, int32_t> ? text : nlohmann::json(text).dump());
  });
  out += R"("pipes":[)";
  for (size_t p = 0; p < program.pipes.size(); ++p)
    out += fmt::format(R"({}{{"device_of":[{}]}})", p > 0 ? "," : "",
                       fmt::join(program.pipes[p].device_of, ","));
  out += fmt::format(R"(],"pipe_of":[{}],)", fmt::join(program.pipe_of, ","));
  out += R"("lists":[)";
  for (int d = 0; d < program.devices; ++d) {
    const DeviceList& list = program.lists[d];
    out += fmt::format(R"({}{{"device":{},"prologue":)", d > 0 ? ",\n" : "\n", d);
    out += JsonOf(list.prologue) + R"(,"body":)" + JsonOf(list.body) + R"(,"epilogue":)" +
           JsonOf(list.epilogue);
    if (!list.evaluation.empty()) out += R"(,"evaluation":)" + JsonOf(list.evaluation);
    out += "}";
  }
  return out + "]}\n";
}

}  // namespace pp
