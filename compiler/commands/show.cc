// pipec show and pipec simulate: a plan as text, as data and as a picture.
#include <fmt/format.h>

#include "compiler/command.h"
#include "compiler/draw.h"
#include "compiler/simulate.h"
#include "schema/file.h"
#include "schema/text.h"
#include "schema/timeline.h"

namespace pp {

Status ShowCommand(const Arguments& a) {
  PP_RETURN_IF_ERROR(OneOf("--format", a.format, {"text", "grid", "json", "chrome-trace"}));
  // Pictures of time are the simulator's, with the default costs.
  if (a.format == "grid" || a.format == "chrome-trace") return SimulateCommand(a);
  int device = -1;
  PP_RETURN_IF_ERROR(ParseNumber("--device", a.device, 0, &device));
  if (device >= 0) {
    if (a.format != "text")
      return Status::Invalid(fmt::format("--device: goes with --format text, not {}", a.format));
    auto program = LoadDevice(a.plans[0], device);
    return program.ok() ? PrintOut(PrintDevice(*program, device)) : program.status();
  }
  auto program = Load(a.plans[0]);
  if (!program.ok()) return program.status();
  if (a.format == "text") return PrintOut(Print(*program));
  return PrintOut(ShowJson(*program));
}

Status SimulateCommand(const Arguments& a) {
  PP_RETURN_IF_ERROR(OneOf("--format", a.format, {"text", "json", "grid", "chrome-trace"}));
  auto plan = LoadVerified(a.plans[0]);
  if (!plan.ok()) return plan.status();
  auto costs = ParseCosts(a.costs.empty() ? "f=1" : a.costs, plan->program.stages);
  if (!costs.ok()) return costs.status();
  auto prediction = Simulate(plan->program, plan->waits_for, *costs);
  if (!prediction.ok()) return prediction.status().In(a.plans[0]);
  if (a.format == "json") return PrintOut(ToJson(*prediction));
  if (a.format == "text") return PrintOut(ToText(*prediction));
  if (a.format == "grid") return PrintOut(Grid(plan->program, prediction->execution));
  std::vector<Event> events;
  for (int d = 0; d < plan->program.devices; ++d)
    for (size_t i = 0; i < prediction->execution.spans[d].size(); ++i) {
      const Span& span = prediction->execution.spans[d][i];
      events.push_back({.rank = d,
                        .device = d,
                        .index = static_cast<int32_t>(i),
                        .start = span.start,
                        .duration = span.end - span.start});
    }
  return PrintOut(ChromeTrace(plan->program, events));
}

}  // namespace pp
