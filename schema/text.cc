#include "schema/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "schema/routines.h"
#include "schema/sections.h"
#include "schema/text_form.h"

namespace pp {
namespace {

using text::kRoutines;
using text::kSections;
using text::WordBefore;

// Each field that is set, after a space.
void AppendFields(std::string& out, const Instruction& i) {
  ForEachField([&]<typename T>(const FieldInfo<T>& info) {
    if (!IsSet(i, info)) return;
    out += ' ';
    if (const auto word = WordBefore(i.op, info.field); !word.empty()) (out += word) += ' ';
    out += info.text;
    if constexpr (std::is_same_v<T, Kind>) out += Info(i.*info.member).text;
    if constexpr (IsNumber<T>) fmt::format_to(std::back_inserter(out), "{}", i.*info.member);
  });
}

template <typename Table, typename Owner>
void AppendAttributes(std::string& out, const Table& table, const Owner& owner) {
  const Owner none;
  ForEachRow(table, [&](const auto& row) {
    const auto& value = owner.*row.member;
    if (row.line != HeaderLine::kAlways && value == none.*row.member) return;
    if (row.line == HeaderLine::kShared) out.back() = ' ';
    out += row.text;
    if (const std::string text = TextOf(row, value); !text.empty()) (out += ' ') += text;
    out += '\n';
  });
}

void AppendList(std::string& out, const std::vector<Instruction>& list) {
  for (const Instruction& instruction : list) {
    fmt::format_to(std::back_inserter(out), "  {:<9}", Info(instruction.op).text);
    AppendFields(out, instruction);
    while (out.back() == ' ') out.pop_back();
    out += '\n';
  }
}

void AppendDevice(std::string& out, const Program& program, int device) {
  auto to = std::back_inserter(out);
  fmt::format_to(to, "device {} holds", device);
  for (int stage : program.StagesOf(device)) fmt::format_to(to, " s{}", stage);
  out += '\n';
  const DeviceList& list = program.lists[device];
  const Sections derived = SectionsOf(program, device);
  const std::array sections{&derived.prologue, &list.body, &derived.epilogue};
  for (int section = 0; section < kRoutines; ++section) {
    if (program.overlaps) fmt::format_to(to, " {}\n", kSections[section]);
    AppendList(out, *sections[section]);
  }
  for (size_t r = 0; r < list.routines.size(); ++r) {
    if (list.routines[r].empty()) continue;
    fmt::format_to(to, " {}\n", program.routines[r].name);
    AppendList(out, list.routines[r]);
  }
}

// Whether its lists say all of the last routine: that it is an evaluation of as many micro-batches
// as a step has.
bool ListsSayAll(const Program& program, size_t index) {
  return index + 1 == program.routines.size() &&
         program.routines[index] == EvaluationLike(program) &&
         std::any_of(program.lists.begin(), program.lists.end(),
                     [&](const DeviceList& list) { return !list.routines[index].empty(); });
}

void AppendRoutine(std::string& out, const Program& program, const Routine& routine) {
  out += fmt::format("routine {} microbatches {}", routine.name, routine.microbatches);
  if (program.pipes.size() > 1) out += fmt::format(" on pipes {}", fmt::join(routine.pipe_of, " "));
  out += '\n';
}

}  // namespace

std::string ToText(const Value& value) {
  std::string out(Info(value.kind).text);
  if (value.stage >= 0) out += fmt::format(" s{}", value.stage);
  if (value.micro >= 0) out += fmt::format(" m{}", value.micro);
  return out;
}

std::string ToText(const Instruction& instruction) {
  std::string out(Info(instruction.op).text);
  AppendFields(out, instruction);
  return out;
}

std::string Print(const Program& program) {
  std::string out = fmt::format("program {} stages {} microbatches {}\n", program.scheme,
                                program.stages, program.microbatches);
  AppendAttributes(out, kProgramAttributes<Program>, program);
  if (program.job) {
    out += fmt::format("model {}\n", ToJson(program.job->model));
    AppendAttributes(out, kJobAttributes, *program.job);
  }
  if (program.pipes.size() > 1) {
    for (const Pipe& pipe : program.pipes)
      out += fmt::format("pipe d{}\n", fmt::join(pipe.device_of, " d"));
    out += fmt::format("micro-batches on pipes {}\n", fmt::join(program.pipe_of, " "));
  }
  for (size_t r = 0; r < program.routines.size(); ++r)
    if (!ListsSayAll(program, r)) AppendRoutine(out, program, program.routines[r]);
  for (int device = 0; device < program.devices; ++device) AppendDevice(out, program, device);
  return out;
}

std::string PrintDevice(const Program& program, int device) {
  std::string out;
  AppendDevice(out, program, device);
  return out;
}

std::string NameByIndex(int device, size_t index) {
  return index == kItself ? fmt::format("device {}", device)
                          : fmt::format("device {}, instruction {}", device, index);
}

}  // namespace pp
