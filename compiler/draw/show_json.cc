#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "compiler/draw.h"
#include "schema/base/version.h"
#include "schema/sections.h"

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

template <typename Owner, typename T>
std::string JsonOf(const Attribute<Owner, T>& row, const T& value) {
  if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
    return fmt::format("[{}]", fmt::join(value, ","));
  } else {
    const std::string text = TextOf(row, value);
    return std::is_same_v<T, int32_t> ? text : nlohmann::json(text).dump();
  }
}

// Under the names of program.fbs.
std::string JsonOf(const Job& job) {
  return fmt::format(
      R"("micro_batch_size":{},"sequence_length":{},"layers_per_stage":[{}],"tp":{},)"
      R"("sequence_parallel":{},"recompute":"{}","keep":"{}","dtype":"{}","backend":"{}",)",
      job.micro_batch_size, job.sequence_length, fmt::join(job.layers_per_stage, ","), job.tp,
      job.sequence_parallel, TextOf(job.recompute, kRecomputeNames), TextOf(job.keep, kKeepNames),
      NameOf(job.dtype), NameOf(job.backend));
}

// Only of a plan that has room for them.
std::string DocumentsOf(const Job& job) {
  return job.documents
             ? fmt::format(R"("documents":true,"document_length":{},)", job.document_length)
             : "";
}

// Only of a plan that has them.
std::string JsonOf(const Lora& lora) {
  return lora.given() ? fmt::format(R"("lora":"{}",)", TextOf(lora)) : "";
}
std::string JsonOf(const Shapes& shapes) {
  return shapes.given() ? fmt::format(R"("shapes":"{}",)", TextOf(shapes)) : "";
}

std::string JsonOf(const std::vector<Instruction>& list) {
  std::string out = "[";
  for (const Instruction& i : list) {
    if (out.size() > 1) out += ',';
    out += JsonOf(i);
  }
  return out + "]";
}

std::string JsonOf(const std::vector<Routine>& routines) {
  std::string out = R"("routines":[)";
  for (const Routine& routine : routines)
    out += fmt::format(R"({}{{"name":"{}","microbatches":{},"pipe_of":[{}]}})",
                       &routine == &routines.front() ? "" : ",", routine.name, routine.microbatches,
                       fmt::join(routine.pipe_of, ","));
  return out + "],";
}

}  // namespace

std::string ShowJson(const Program& program) {
  std::string out = fmt::format(
      R"({{"format":{},"scheme":{},"devices":{},"stages":{},"microbatches":{},)", kPlanFormat,
      nlohmann::json(program.scheme).dump(), program.devices, program.stages, program.microbatches);
  Program head = program.Head();
  head.tied = program.TiedStages();
  ForEachRow(kProgramAttributes<Program>, [&]<typename T>(const Attribute<Program, T>& row) {
    std::string key(row.text);
    std::replace(key.begin(), key.end(), '-', '_');
    out += fmt::format(R"("{}":{},)", key, JsonOf(row, head.*row.member));
  });
  if (program.job)
    out += JsonOf(*program.job) + DocumentsOf(*program.job) + JsonOf(program.job->lora) +
           JsonOf(program.job->shapes);
  out += R"("pipes":[)";
  for (size_t p = 0; p < program.pipes.size(); ++p)
    out += fmt::format(R"({}{{"device_of":[{}]}})", p > 0 ? "," : "",
                       fmt::join(program.pipes[p].device_of, ","));
  out += fmt::format(R"(],"pipe_of":[{}],)", fmt::join(program.pipe_of, ","));
  if (!program.routines.empty()) out += JsonOf(program.routines);
  out += R"("lists":[)";
  for (int d = 0; d < program.devices; ++d) {
    const DeviceList& list = program.lists[d];
    out += fmt::format(R"({}{{"device":{},"prologue":)", d > 0 ? ",\n" : "\n", d);
    const Sections sections = SectionsOf(program, d);
    out += JsonOf(sections.prologue) + R"(,"body":)" + JsonOf(list.body) + R"(,"epilogue":)" +
           JsonOf(sections.epilogue);
    for (size_t r = 0; r < list.routines.size(); ++r)
      if (!list.routines[r].empty())
        out += fmt::format(R"(,"{}":)", program.routines[r].name) + JsonOf(list.routines[r]);
    out += "}";
  }
  return out + "]}\n";
}

}  // namespace pp
