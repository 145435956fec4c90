// pipec show and pipec simulate: a plan as text, as data and as a picture.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "compiler/command.h"
#include "compiler/draw.h"
#include "compiler/draw/picture.h"
#include "compiler/interop.h"
#include "compiler/measured.h"
#include "compiler/places.h"
#include "compiler/simulate.h"
#include "schema/base/text_source.h"
#include "schema/base/units.h"
#include "schema/format/file.h"
#include "schema/format/timeline.h"
#include "schema/proof/verify.h"
#include "schema/routines.h"
#include "schema/sections.h"
#include "schema/text.h"
#include "schema/topology.h"

namespace pp {

namespace {

// What a run took (--trace), of the program as it was run: not unrolled, if steps overlap.
struct Traced {
  Program program;
  MeasuredRun run;
};
// A plan and what the simulator predicts for it.
struct Simulated {
  VerifiedPlan plan;
  Prediction prediction;
  std::optional<Traced> traced;
  double memory = 0;  // of a device of --machine, in bytes; 0: not known
};

// What the run of --trace took. Costs in T become those in seconds that it measured.
// `whole`: of which the program is a routine.
Result<MeasuredRun> ReadTrace(const Arguments& a, const Program& whole, const Program& program,
                              CostModel* costs) {
  a.progress->Doing("reading " + a.trace);
  auto source = TextSource::Open(a.trace, "a trace that piperun wrote");
  PP_RETURN_IF_ERROR(source.status().In("--trace"));
  Status read;  // names the file already
  auto events = ParseChromeTrace(whole, [&]() -> Result<std::string_view> {
    auto piece = source->Next();
    read = piece.status();
    return piece;
  });
  PP_RETURN_IF_ERROR(read.In("--trace"));
  PP_RETURN_IF_ERROR(events.status().In("--trace: " + a.trace));
  const int routine = FindRoutine(whole, a.routine);
  const auto of_others = [&](const Event& event) { return event.routine != routine; };
  const auto other = std::find_if(events->begin(), events->end(), of_others);
  const int has = other == events->end() ? routine : other->routine;
  std::erase_if(*events, of_others);
  if (events->empty() && has != routine)
    return Status::Invalid(fmt::format(
        "--trace: {}: has no {}, of which --routine is (it has {}; evaluations are not recorded)",
        a.trace, a.routine, has < 0 ? std::string(kStepRoutine) : whole.routines[has].name));
  auto measured = Measure(program, *costs, *events);
  PP_RETURN_IF_ERROR(measured.status().In("--trace: " + a.trace));
  if (costs->seconds) return measured;
  const double seconds = SecondsPerUnit(*measured);
  constexpr double kMostSeconds = 1e6;  // of a T, as of an instruction in a profile
  if (!(seconds > 0 && seconds < kMostSeconds))
    return Status::Invalid(fmt::format(
        "--trace: {}: what computes takes {:g} s a T there (--costs in seconds, or of a profile)",
        a.trace, seconds));
  *costs = InSeconds(std::move(*costs), seconds);
  measured = Measure(program, *costs, *events);
  if (measured.ok()) measured->seconds_per_unit = seconds;
  return measured;
}

// What --routine names.
Result<Program> Selected(const Arguments& a, Program program) {
  if (a.routine == kStepRoutine) return program;
  const int routine = FindRoutine(program, a.routine);
  if (routine >= 0) return RoutineOf(program, routine);
  std::string known(kStepRoutine);
  for (const Routine& one : program.routines) known += ", " + one.name;
  return Status::Invalid(fmt::format("--routine: '{}' ({})", Shown(a.routine), known));
}

// As --costs says; those of the plan if it says nothing.
Result<CostModel> CostsGiven(const std::string& text, const Program& plan) {
  if (text.empty()) return CostsOf(plan);
  const auto costs = ParseCosts(text);
  return costs.ok() ? CostsOf(plan, *costs) : costs.status().In("--costs");
}

Result<Simulated> SimulatePlan(const Arguments& a, const std::string& path) {
  auto plan = LoadVerified(a, path);
  if (!plan.ok()) return plan.status();
  std::optional<Program> whole;  // of which it is a routine
  if (a.routine != kStepRoutine) {
    whole = plan->program;
    auto selected = Selected(a, std::move(plan->program));
    PP_RETURN_IF_ERROR(selected.status().In(path));
    plan->program = std::move(*selected);
    PP_RETURN_IF_ERROR(Verify(plan->program, Depth::kPlan, &plan->waits_for).In(path));
  }
  PriceSource prices;
  std::string given = a.costs;
  PP_RETURN_IF_ERROR(ReadPrices(a, &given, &prices));
  if (prices.given() && !prices.stages && !plan->program.job)
    return Status::Invalid(
        fmt::format("{}: {} has no model", prices.machine ? "--machine" : "--costs", path));
  const bool plan_costs = given.empty() && !prices.given() && plan->program.costs;
  auto costs = prices.given() ? CostsOn(prices, plan->program) : CostsGiven(given, plan->program);
  if (!costs.ok()) return plan_costs ? costs.status().In(path) : costs.status();
  if (path == a.plans.front()) NoteBareTimes(a, a.costs);
  std::optional<Traced> traced;
  if (!a.trace.empty()) {
    auto run = ReadTrace(a, whole ? *whole : plan->program, plan->program, &*costs);
    if (!run.ok()) return run.status();
    traced = {plan->program, std::move(*run)};
  }
  a.progress->Doing("simulating " + path);
  auto prediction = Simulate(plan->program, plan->waits_for, *costs, a.network);
  if (!prediction.ok()) return prediction.status().In(path);
  if (a.why) {
    auto why = Explain(plan->program, *costs, *prediction);
    if (!why.ok()) return why.status().In(path);
    prediction->why = std::move(*why);
  }
  prediction->plan_costs = plan_costs;
  plan->program = Unrolled(std::move(plan->program));
  return Simulated{std::move(*plan), std::move(*prediction), std::move(traced),
                   prices.machine ? prices.machine->memory : 0};
}

std::string Trace(const Program& program, const Execution& execution) {
  std::vector<Event> events;
  const Topology topology = TopologyOf(program);
  const auto spans = SpansWithWaits(program, execution);
  for (int d = 0; d < program.devices; ++d)
    for (size_t i = 0; i < spans[d].size(); ++i)
      events.push_back({.rank = topology.RankOf({.device = d}),
                        .device = d,
                        .index = static_cast<int32_t>(i),
                        .start = spans[d][i].start,
                        .duration = spans[d][i].end - spans[d][i].start});
  return ChromeTrace(program, events);
}

Status OnePlan(const Arguments& a) {
  if (a.plans.size() == 1) return {};
  return Status::Invalid(fmt::format(
      "{}: a second plan (--format html and svg stack plans, {} shows one)", a.plans[1], a.format));
}

// For one plan an object, for several an array of them, each with the name of its file.
std::string PredictionsAsJson(const Arguments& a, const std::vector<Simulated>& plans) {
  if (plans.size() == 1) {
    const auto& traced = plans[0].traced;
    const std::string members =
        traced ? ToJson(traced->run, traced->program, plans[0].prediction) : "";
    return ToJson(plans[0].prediction, "", members) + "\n";
  }
  std::string out = "[";
  for (size_t i = 0; i < plans.size(); ++i)
    out += fmt::format("{}\n{}", i > 0 ? "," : "", ToJson(plans[i].prediction, a.plans[i]));
  return out + "\n]\n";
}

// A row a plan, with the peaks of the device where they are highest.
std::string Comparison(const Arguments& a, const std::vector<Simulated>& plans) {
  size_t width = 4;
  for (const std::string& path : a.plans) width = std::max(width, Shown(path).size());
  std::string out = fmt::format("{:<{}} {:>11} {:>11} {:>8}  peak activations     peak memory\n",
                                "plan", width, "makespan", "period", "bubble");
  for (size_t i = 0; i < plans.size(); ++i) {
    const Prediction& prediction = plans[i].prediction;
    double activations = 0;
    int64_t bytes = 0;
    for (const DevicePrediction& device : prediction.devices) {
      activations = std::max(activations, device.peak_activations);
      bytes = std::max(bytes, device.peak_bytes);
    }
    out += fmt::format("{:<{}} {:11g} {:11g} {:6.1f} % {:17g} {:>15}\n", Shown(a.plans[i]), width,
                       prediction.makespan, prediction.period, prediction.bubble * 100, activations,
                       bytes > 0 ? BytesText(static_cast<double>(bytes)) : "-");
    if (plans[i].memory > 0 && static_cast<double>(bytes) > plans[i].memory)
      out.replace(out.size() - 1, 1,
                  fmt::format("  does not fit ({})\n", BytesText(plans[i].memory)));
  }
  return out;
}

// Of several plans first how they compare.
std::string PredictionsAsText(const Arguments& a, const std::vector<Simulated>& plans) {
  if (plans.size() == 1) {
    const auto& traced = plans[0].traced;
    return ToText(plans[0].prediction) +
           (traced ? "\n" + ToText(traced->run, traced->program, plans[0].prediction) : "");
  }
  std::string out = Comparison(a, plans);
  for (size_t i = 0; i < plans.size(); ++i)
    out += fmt::format("\n{}\n{}", Shown(a.plans[i]), ToText(plans[i].prediction));
  return out;
}

// Says on standard error what the rows do not: renumbered micro-batches, and what torchtitan, which
// takes compute instructions alone, has to be told beside them.
Status ShowTorchCsv(const Arguments& a, const Program& program) {
  const auto csv = PrintTorchCsv(program, a.messages);
  if (!csv.ok()) return csv.status().In(a.plans[0]);
  const std::vector<int32_t> order = LossOrder(program);
  if (!std::is_sorted(order.begin(), order.end())) {
    constexpr size_t kShown = 16;
    const std::span<const int32_t> first(order.data(), std::min(order.size(), kShown));
    Note(a, fmt::format("pipec: {}: micro-batches 0, 1, ... become {}{} (in the order of the last "
                        "stage's forwards, by which PyTorch looks up losses)",
                        Shown(a.plans[0]), fmt::join(first, ", "),
                        order.size() > kShown ? ", ..." : ""));
  }
  if (a.messages == TorchMessages::kCompute) {
    const auto name = TorchtitanSchedule(program);
    Note(a, fmt::format("pipec: {}: torchtitan {}", Shown(a.plans[0]),
                        name.ok() ? "needs pipeline_parallel_schedule " + *name
                                  : "cannot place it: " + name.status().message()));
  }
  return PrintOut(*csv);
}

}  // namespace

Status ShowCommand(const Arguments& a) {
  if (a.messages == TorchMessages::kFull && a.format != "torch-csv")
    return Status::Invalid(
        fmt::format("--messages: goes with --format torch-csv, not {}", a.format));
  if (a.device >= 0 && a.format != "text")
    return Status::Invalid(fmt::format("--device: goes with --format text, not {}", a.format));
  // Pictures of time are the simulator's.
  if (a.format != "text" && a.format != "stages" && a.format != "memory" && a.format != "json" &&
      a.format != "torch-csv")
    return SimulateCommand(a);
  PP_RETURN_IF_ERROR(OnePlan(a));
  if (a.device >= 0) {
    auto program = LoadDevice(a.plans[0], a.device);
    PP_RETURN_IF_ERROR(program.status());
    const auto selected = Selected(a, std::move(*program));
    PP_RETURN_IF_ERROR(selected.status().In(a.plans[0]));
    return PrintOut(PrintDevice(*selected, a.device));
  }
  a.progress->Doing("printing " + a.plans[0]);
  auto loaded = Load(a.plans[0]);
  PP_RETURN_IF_ERROR(loaded.status());
  const auto program = Selected(a, std::move(*loaded));
  PP_RETURN_IF_ERROR(program.status().In(a.plans[0]));
  if (a.format == "torch-csv" && program->ramp.given())
    Note(a, fmt::format("pipec: the step of {} micro-batches alone (--routine has the others)",
                        program->microbatches));
  if (a.format == "torch-csv") return ShowTorchCsv(a, *program);
  if (a.format == "stages" || a.format == "memory") {
    const auto table = a.format == "stages" ? Stages(*program) : MemoryTable(*program);
    return table.ok() ? PrintOut(*table) : table.status().In(a.plans[0]);
  }
  return PrintOut(a.format == "text" ? Print(*program) : ShowJson(*program));
}

Status SimulateCommand(const Arguments& a) {
  if (a.why && a.format != "text" && a.format != "json" && a.format != "html")
    return Status::Invalid(
        fmt::format("--why: goes with --format text, json or html, not {}", a.format));
  const bool of_one = a.format == "grid" || a.format == "chrome-trace";
  if (!a.trace.empty() && of_one)
    return Status::Invalid(
        fmt::format("--trace: goes with --format text, json, svg or html, not {}", a.format));
  if (!a.trace.empty() && a.plans.size() > 1)
    return Status::Invalid(fmt::format("{}: a second plan (--trace is of one)", a.plans[1]));
  if (of_one) PP_RETURN_IF_ERROR(OnePlan(a));
  std::vector<Simulated> plans;
  for (const std::string& path : a.plans) {
    auto simulated = SimulatePlan(a, path);
    if (!simulated.ok()) return simulated.status();
    if (!plans.empty() && simulated->prediction.unit != plans[0].prediction.unit)
      return Status::Invalid(fmt::format("{}: its times are in {}, those of {} in {} (--costs)",
                                         path, simulated->prediction.unit, a.plans[0],
                                         plans[0].prediction.unit));
    plans.push_back(std::move(*simulated));
  }
  const Program& program = plans[0].plan.program;
  const Prediction& prediction = plans[0].prediction;
  if (a.format == "json") return PrintOut(PredictionsAsJson(a, plans));
  if (a.format == "text") return PrintOut(PredictionsAsText(a, plans));
  if (prediction.plan_costs)
    Note(a, fmt::format("pipec: {}: costs of the plan", Shown(a.plans[0])));
  if (a.format == "chrome-trace") return PrintOut(Trace(program, prediction.execution));
  if (a.format == "grid") {
    const bool colour = a.color == "always" || (a.color == "auto" && a.terminal);
    auto grid = Grid(program, prediction.execution, colour ? Paint::kColour : Paint::kPlain);
    return grid.ok() ? PrintOut(*grid) : grid.status();
  }
  std::vector<Drawn> drawn;
  for (const Simulated& one : plans) {
    const std::string which = one.traced ? ", predicted" : "";
    drawn.push_back({&one.plan.program, &one.prediction, which});
    if (one.traced)
      drawn.push_back({&one.traced->program, &one.traced->run.shown,
                       fmt::format(", measured (step {})", one.traced->run.step)});
  }
  return PrintOut(a.format == "svg" ? Svg(drawn) : Page(drawn));
}

}  // namespace pp
