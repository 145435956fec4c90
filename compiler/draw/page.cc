// The page's data: what is inserted into draw/page/page.html.
//
// An instruction is four numbers in four arrays: its kind, its micro-batch, when it starts and how
// long it takes. A kind is what instructions share that differ only in the micro-batch: the text
// before and after its number, lane and colour.
#include <fmt/format.h>

#include <array>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "compiler/draw.h"
#include "compiler/draw/page_html.h"
#include "compiler/draw/picture.h"
#include "schema/base/units.h"
#include "schema/sections.h"
#include "schema/text.h"

namespace pp {
namespace {

// JSON that is safe inside <script>: no text in it can end the element.
std::string Quoted(const std::string& text) {
  std::string out;
  for (char c : nlohmann::json(text).dump()) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

class PlanData {
 public:
  explicit PlanData(const Drawn& drawn)
      : program_(*drawn.program), prediction_(*drawn.prediction), which_(drawn.which) {}

  std::string Json() {
    std::string devices;
    const auto tracks = Tracks(program_, prediction_.execution);
    for (int d = 0; d < program_.devices; ++d)
      devices += (d > 0 ? ",\n" : "\n") + Device(d, tracks[d]);
    const bool several = program_.stages > program_.devices || program_.pipes.size() > 1;
    return fmt::format(R"({{"scheme":{},"about":{},"summary":{},"end":{:.9g},)"
                       R"("several":{},"kinds":[{}],"devices":[{}]}})",
                       Quoted(program_.scheme + which_), Quoted(Title(program_)),
                       Quoted(Summary(program_, prediction_)), prediction_.execution.makespan,
                       several, kinds_json_, devices);
  }

 private:
  std::string Device(int device, const std::vector<Track>& tracks) {
    const auto& list = program_.lists[device].body;
    std::vector<int> kind(list.size());
    std::vector<Box> boxes(list.size());
    std::string lanes;
    std::vector<int> upper, lower;
    for (const Track& track : tracks) {
      lanes +=
          fmt::format("{}[{},\"{}\"]", lanes.empty() ? "" : ",", track.lane.id, track.lane.name);
      for (const Box& box : track.boxes) {
        boxes[box.index] = box;
        kind[box.index] = KindOf(device, list[box.index], track.lane.id);
        if (box.height == Height::kUpper) upper.push_back(box.index);
        if (box.height == Height::kLower) lower.push_back(box.index);
      }
    }
    fmt::memory_buffer micro, start, duration;
    for (size_t i = 0; i < list.size(); ++i) {
      const char* comma = i > 0 ? "," : "";
      fmt::format_to(std::back_inserter(micro), "{}{}", comma, list[i].micro);
      fmt::format_to(std::back_inserter(start), "{}{:.9g}", comma, boxes[i].start);
      fmt::format_to(std::back_inserter(duration), "{}{:.9g}", comma,
                     boxes[i].end - boxes[i].start);
    }
    int alive = 0;  // of a step that begins among others
    for (const Instruction& before : SectionsOf(program_, device).prologue)
      alive += ActivationChange(before.op);
    const int64_t bytes = prediction_.devices[device].peak_bytes;
    return fmt::format(
        R"({{"activation":{},"alive":{},"memory":"{}",{}"lanes":[{}],"upper":[{}],"lower":[{}],)"
        R"("kind":[{}],"micro":[{}],"start":[{}],"duration":[{}]}})",
        prediction_.devices[device].share, alive, bytes > 0 ? BytesText(bytes) : "",
        prediction_.why ? WhyOf(device) : "", lanes, fmt::join(upper, ","), fmt::join(lower, ","),
        fmt::join(kind, ","), fmt::to_string(micro), fmt::to_string(start),
        fmt::to_string(duration));
  }

  // Its idle time by cause, and its instructions on the critical path.
  std::string WhyOf(int device) const {
    const Idle& idle = prediction_.why->idle[device];
    std::string parts;
    const auto add = [&](std::string_view name, double time) {
      if (time > 0) parts += fmt::format("{}{} {:g}", parts.empty() ? "" : ", ", name, time);
    };
    add("warm-up", idle.warm_up);
    for (size_t c = 0; c < kCauses.size(); ++c) add(kCauses[c], idle.gaps[c]);
    add("drain", idle.drain);
    std::vector<int> critical;
    for (const PathStep& step : prediction_.why->critical_path)
      if (step.device == device) critical.push_back(step.index);
    return fmt::format(R"("idle":"{}","critical":[{}],)", parts, fmt::join(critical, ","));
  }

  int KindOf(int device, const Instruction& instruction, int lane) {
    std::string before = ToText(instruction), after;
    if (instruction.micro >= 0) {
      const std::string micro = fmt::format("{}", instruction.micro);
      const size_t at = before.find(" m" + micro) + 2;
      after = before.substr(at + micro.size());
      before.resize(at);
    }
    const std::string colour = ColourOf(instruction.op, shades_.Of(device, instruction));
    // In full activations, by which a small micro-batch is a part of one.
    const double change =
        ActivationChange(instruction.op) * program_.SizeOf(program_.ShapeOf(instruction.micro));
    const auto [kind, is_new] =
        kinds_.try_emplace({before, after, colour, fmt::format("{:.6g}", change)}, kinds_.size());
    if (is_new)
      kinds_json_ += fmt::format(
          R"({}{{"before":"{}","after":"{}","op":"{}","legend":"{}","lane":{},"stage":{},)"
          R"("change":{},"colour":"{}"}})",
          kinds_json_.empty() ? "\n" : ",\n", before, after, Info(instruction.op).text,
          StyleOf(instruction.op).legend, lane, instruction.stage, fmt::format("{:.6g}", change),
          colour);
    return kind->second;
  }

  const Program& program_;
  const Prediction& prediction_;
  const std::string which_;
  const Shades shades_{program_};
  std::map<std::array<std::string, 4>, int> kinds_;
  std::string kinds_json_;
};

}  // namespace

std::string Page(std::span<const Drawn> plans) {
  std::string data = R"({"unit":")" + std::string(plans.empty() ? "T" : plans[0].prediction->unit) +
                     R"(","plans":[)";
  for (const Drawn& drawn : plans)
    data += (&drawn != &plans[0] ? ",\n" : "\n") + PlanData(drawn).Json();
  data += "]}";
  const std::string_view page(kPageHtml + 1);  // without the line break after its R"page(
  const std::string_view mark = "{{plans}}";
  const size_t at = page.find(mark);
  PP_CHECK(at != page.npos);
  return fmt::format("{}{}{}", page.substr(0, at), data, page.substr(at + mark.size()));
}

}  // namespace pp
