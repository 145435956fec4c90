#include "schema/format/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "schema/base/json.h"
#include "schema/routines.h"
#include "schema/text.h"
#include "schema/topology.h"

namespace pp {
namespace {

using Names = std::map<std::pair<int, int>, std::string>;  // rank, thread -> name

void AppendNames(const Names& names, fmt::memory_buffer* out) {
  constexpr const char* kRow = R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{{}}}}},)"
                               "\n";
  int rank = -1;
  for (const auto& [key, name] : names) {
    const int pid = key.first, tid = key.second;
    auto row = [&](const char* what, const std::string& args) {
      fmt::format_to(std::back_inserter(*out), fmt::runtime(kRow), what, pid, tid, args);
    };
    if (pid != rank) {
      row("process_name", fmt::format(R"("name":"rank {}")", pid));
      row("process_sort_index", fmt::format(R"("sort_index":{})", pid));
      rank = pid;
    }
    row("thread_name", fmt::format(R"("name":"{}")", name));
    row("thread_sort_index", fmt::format(R"("sort_index":{})", tid));
  }
}

// A number of the object from 0 to `most`.
Result<double> NumberOf(const nlohmann::json& object, const char* key, double most) {
  const auto at = object.is_object() ? object.find(key) : object.end();
  if (at == object.end() || !at->is_number() || !(at->get<double>() >= 0) ||
      at->get<double>() > most)
    return Status::Invalid(fmt::format("{} is missing or no number from 0 to {:g}", key, most));
  return at->get<double>();
}

Result<Event> ReadEvent(const Program& program, const nlohmann::json& json) {
  Event event;
  const auto whole = [&](const nlohmann::json& object, const char* key, double most,
                         int32_t* number) {
    const auto read = NumberOf(object, key, most);
    if (read.ok() && *read != std::floor(*read))
      return Status::Invalid(fmt::format("{} is {} (a whole number)", key, *read));
    if (read.ok()) *number = static_cast<int32_t>(*read);
    return read.status();
  };
  const int64_t peers = program.job ? program.job->tp : 1;
  PP_RETURN_IF_ERROR(whole(
      json, "pid",
      std::min(
          static_cast<double>(program.replicas) * program.devices * static_cast<double>(peers) - 1,
          static_cast<double>(INT32_MAX)),
      &event.rank));
  event.device = TopologyOf(program).PlaceOf(event.rank).device;
  const auto args = json.find("args");
  if (args == json.end()) return Status::Invalid("args is missing");
  PP_RETURN_IF_ERROR(whole(*args, "step", INT32_MAX, &event.step));
  if (const auto routine = args->find("routine"); routine != args->end()) {
    event.routine = routine->is_string() ? FindRoutine(program, routine->get<std::string>()) : -1;
    if (event.routine < 0)
      return Status::Invalid(
          fmt::format("args: routine {} (one of the plan's)", Shown(routine->dump())));
  }
  const auto& list = ListOf(program, event);
  PP_RETURN_IF_ERROR(
      whole(*args, "index", static_cast<double>(list.size()) - 1, &event.index).In("args"));
  const std::string expected = ToText(list[event.index]);
  const auto name = json.find("name");
  if (name == json.end() || *name != expected)
    return Status::Invalid(
        fmt::format("instruction {} of device {} is {}, the plan's is '{}'", event.index,
                    event.device, name == json.end() ? "missing" : Shown(name->dump()), expected));
  constexpr double kMostMicroseconds = 1e15;
  for (const auto& [key, seconds] :
       {std::pair("ts", &event.start), std::pair("dur", &event.duration)}) {
    const auto read = NumberOf(json, key, kMostMicroseconds);
    PP_RETURN_IF_ERROR(read.status());
    *seconds = *read * 1e-6;
  }
  return event;
}

std::string RoutineText(const Program& program, const Event& event) {
  return event.routine < 0
             ? ""
             : fmt::format(R"(,"routine":"{}")", program.routines[event.routine].name);
}

}  // namespace

const std::vector<Instruction>& ListOf(const Program& program, const Event& event) {
  const DeviceList& list = program.lists[event.device];
  return event.routine < 0 ? list.body : list.routines[event.routine];
}

LaneName LaneOf(const Instruction& instruction) {
  switch (Info(instruction.op).lane) {
    case Lane::kCompute:
      return {0, "compute"};
    case Lane::kReduce:
      return {1, "reduce"};
    case Lane::kSend:
      return {2 + 2 * instruction.peer, fmt::format("send to d{}", instruction.peer)};
    case Lane::kRecv:
      return {3 + 2 * instruction.peer, fmt::format("receive from d{}", instruction.peer)};
  }
  return {};
}

Status WriteChromeTrace(const Program& program, std::span<const Event> events,
                        const std::function<Status(std::string_view)>& write) {
  constexpr size_t kPiece = 1 << 16;
  fmt::memory_buffer out;
  auto append = [&](std::string_view text) { out.append(text.data(), text.data() + text.size()); };
  append("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  Names names;
  for (const Event& event : events) {
    const LaneName lane = LaneOf(InstructionOf(program, event));
    names.try_emplace({event.rank, lane.id}, lane.name);
  }
  AppendNames(names, &out);
  bool first = true;
  for (const Event& event : events) {
    const Instruction& instruction = InstructionOf(program, event);
    fmt::format_to(std::back_inserter(out),
                   R"({}{{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{:.3f},)"
                   R"("dur":{:.3f},"args":{{"step":{},"index":{}{}}}}})",
                   first ? "" : ",\n", ToText(instruction), Info(instruction.op).text, event.rank,
                   LaneOf(instruction).id, event.start * 1e6, event.duration * 1e6, event.step,
                   event.index, RoutineText(program, event));
    first = false;
    if (out.size() < kPiece) continue;
    PP_RETURN_IF_ERROR(write(std::string_view(out.data(), out.size())));
    out.clear();
  }
  // Without events there would be a trailing comma after the last name.
  if (first && out.size() > 2 && out[out.size() - 2] == ',') out.resize(out.size() - 2);
  append("\n]}\n");
  return write(std::string_view(out.data(), out.size()));
}

std::string ChromeTrace(const Program& program, std::span<const Event> events) {
  std::string text;
  const Status status = WriteChromeTrace(program, events, [&](std::string_view piece) {
    text += piece;
    return Status();
  });
  PP_CHECK(status.ok());
  return text;
}

Result<std::vector<Event>> ParseChromeTrace(const Program& program, const JsonPieces& next) {
  std::vector<Event> events;
  const auto take = [&](const JsonPart& row) -> Status {
    const auto phase = row.value.is_object() ? row.value.find("ph") : row.value.end();
    if (phase == row.value.end() || *phase != "X") return {};  // names and the like
    const auto event = ReadEvent(program, row.value);
    if (!event.ok()) return event.status().In(fmt::format("event {}", row.index));
    if (events.size() == kMostEvents)
      return Status::Invalid(fmt::format("more than {} events (a shorter run)", kMostEvents));
    events.push_back(*event);
    return {};
  };
  const Result<bool> whole =
      ForEachJsonPart(next, {"traceEvents", nlohmann::json::value_t::array}, take);
  PP_RETURN_IF_ERROR(whole.status());
  if (!*whole) return Status::Invalid("is no trace (piperun --trace writes them)");
  return events;
}

Result<std::vector<Event>> ParseChromeTrace(const Program& program, std::string_view text) {
  return ParseChromeTrace(program, [&]() -> Result<std::string_view> {
    return std::exchange(text, std::string_view());
  });
}

}  // namespace pp
