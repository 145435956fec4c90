#include "schema/timeline.h"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <utility>

#include "schema/text.h"

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

}  // namespace

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
    const LaneName lane = LaneOf(program.lists[event.device].body[event.index]);
    names.try_emplace({event.rank, lane.id}, lane.name);
  }
  AppendNames(names, &out);
  bool first = true;
  for (const Event& event : events) {
    const Instruction& instruction = program.lists[event.device].body[event.index];
    fmt::format_to(std::back_inserter(out),
                   R"({}{{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{:.3f},)"
                   R"("dur":{:.3f},"args":{{"step":{},"index":{}}}}})",
                   first ? "" : ",\n", ToText(instruction), Info(instruction.op).text, event.rank,
                   LaneOf(instruction).id, event.start * 1e6, event.duration * 1e6, event.step,
                   event.index);
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

}  // namespace pp
