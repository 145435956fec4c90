// pipec compile and pipec import: a plan from a scheme, or from lists.
#include "compiler/compile.h"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/command.h"
#include "compiler/cuts.h"
#include "compiler/interop.h"
#include "compiler/lines.h"
#include "compiler/simulate.h"
#include "compiler/tune/auto.h"
#include "schema/base/text_source.h"
#include "schema/base/units.h"
#include "schema/format/file.h"
#include "schema/sections.h"
#include "schema/text.h"

namespace pp {
namespace {

// How fit-memory reports what it found.
void AddReports(const Arguments& a, MemoryFit* fit) {
  const char* what = fit->objective == Objective::kPeriod ? "period of the schedule" : "makespan";
  if (fit->search_seconds > 0)
    fit->progress = [what, &a](double makespan) {
      Note(a, fmt::format("fit-memory: {} {:g}", what, makespan));
    };
  const bool bytes = fit->limit.unit == MemoryLimit::kBytes;
  fit->report = [bytes, what, &a](const FitReport& report) {
    std::string bound = "no lower bound (pairs overlap)";
    if (report.lower_bound) {
      const double lower = *report.lower_bound;
      double gap = lower > 0 ? 100 * (report.makespan / lower - 1) : 0;
      if (std::abs(gap) < 1e-9) gap = 0;  // the same sum in another order
      bound = fmt::format("lower bound {:g} (gap {:.1f} %)", lower, gap);
    }
    std::vector<double> peaks = report.peaks;
    for (double& peak : peaks) peak /= bytes ? 1 << 30 : 1;
    Note(a, fmt::format("fit-memory: {} {:g}{}, {}, peaks {:.4g}{}", what, report.makespan,
                        report.whole ? "" : " without STEP and reductions", bound,
                        fmt::join(peaks, " "), bytes ? " GiB" : ""));
  };
}

// The options that compile and import share.
Status ReadLowering(const Arguments& given, CompileOptions* options) {
  Arguments a = given;
  options->reduce = a.reduce;
  options->evaluates = a.evaluates;
  if (!a.model.empty()) {
    std::vector<std::string> unknown;
    auto model = LoadModelConfig(a.model, &unknown);
    if (!model.ok()) return model.status();
    if (!unknown.empty()) Note(a, "pipec: " + UnknownKeysNote(a.model, unknown));
    // Lists that came with a split into layers refer to a model of that depth.
    if (options->job.model.layers != model->layers) options->job.layers_per_stage.clear();
    options->job.model = *model;
  }
  std::string& layers = a.attributes["--layers-per-stage"];
  options->balance_layers = layers == "auto";
  if (options->balance_layers) layers.clear();
  PP_RETURN_IF_ERROR(ReadAttributes(a, kProgramAttributes<CompileOptions>, options));
  PP_RETURN_IF_ERROR(ReadAttributes(a, kJobAttributes, &options->job));
  PP_RETURN_IF_ERROR(ReadLengths(a, &options->job));
  PP_RETURN_IF_ERROR(ReadPrices(a, &options->costs, &options->prices));
  options->fit = a.fit;
  options->fit.search_seconds = a.search_seconds;
  AddReports(given, &options->fit);
  return {};
}

PassObserver ObserverOf(const Arguments& a) {
  PassObserver observer;
  observer.begin = [&a](std::string_view name) { a.progress->Doing(std::string(name)); };
  observer.end = [&a](std::string_view name, const Program& program, double seconds) {
    if (a.time_passes) fmt::print(std::cerr, "{:>10.3f} ms  {}\n", seconds * 1e3, name);
    if (name != "verify" && (a.print_after == "all" || a.print_after == name))
      fmt::print(std::cout, "# after {}\n{}", name, Print(program));
  };
  return observer;
}

int64_t MostOnADevice(const Program& program) {
  int64_t most = 0;
  for (const DeviceList& list : program.lists) most = std::max(most, list.arena_bytes);
  return most;
}

// What the plan would take if it trained the whole model: the same schedule, lowered anew, with all
// reductions and other sizes.
Result<int64_t> BytesWithoutLora(Program program) {
  program.job->lora = {};
  for (DeviceList& list : program.lists)
    std::erase_if(list.body, [](const Instruction& i) {
      return Info(i.op).lane != Lane::kCompute || i.micro < 0 || i.op == Op::kWait;
    });
  const auto costs = CostsOf(program);
  PP_RETURN_IF_ERROR(costs.status());
  PP_RETURN_IF_ERROR(Lower(program, Form::kFitted, {.costs = *costs, .proves = false}));
  return MostOnADevice(program);
}

Status SavePlan(const Arguments& a, const Program& program) {
  a.progress->Doing("writing " + a.output);
  PP_RETURN_IF_ERROR(Save(program, a.output));
  NoteBareTimes(a, a.attributes.at("--costs"));
  std::string line = fmt::format("{}: {}", Shown(a.output), Summary(program));
  int64_t most = 0;
  if (program.job) {
    most = MostOnADevice(program);
  } else if (const auto costs = CostsOf(program); costs.ok() && CountsBytes(*costs)) {
    for (const DevicePrediction& device : PeaksOf(Unrolled(program), *costs))
      most = std::max(most, device.peak_bytes);
  }
  if (most > 0)
    line += fmt::format(", at most {} on a device", BytesText(static_cast<double>(most)));
  if (program.job && program.job->lora.given() && !program.overlaps) {
    const Result<int64_t> full = BytesWithoutLora(program);
    if (full.ok())
      line += fmt::format(" ({} without --lora)", BytesText(static_cast<double>(*full)));
  }
  if (program.job) {
    if (const auto given = a.attributes.find("--layers-per-stage");
        !a.layout.empty() || (given != a.attributes.end() && given->second == "auto"))
      line += fmt::format(", layers {}", fmt::join(program.job->layers_per_stage, " "));
  }
  Note(a, line);
  return {};
}

Status CompileAndSave(const Arguments& a, const CompileOptions& options) {
  auto program = Compile(options, ObserverOf(a));
  if (!program.ok()) return program.status();
  PP_RETURN_IF_ERROR(PrintOut(""));  // what --print-after wrote
  return SavePlan(a, *program);
}

// What says how many micro-batches there are, and of what.
Status CheckMicrobatches(const Arguments& a, const CompileOptions& options) {
  const auto beside = [](const char* option, const char* other) {
    return Status::Invalid(fmt::format("{}: beside {} (one of the two)", option, other));
  };
  const bool ramp = options.ramp.given(), shapes = options.job.shapes.given();
  if (a.shape.microbatches == 0 && !ramp && !shapes)
    return Status::Invalid("--microbatches: is required (or --batch-ramp, or --shapes)");
  if (ramp && shapes) return beside("--batch-ramp", "--shapes");
  if (a.shape.microbatches > 0 && (ramp || shapes))
    return beside("--microbatches", ramp ? "--batch-ramp" : "--shapes");
  for (const char* option : {"--seq-length", "--micro-batch-size"})
    if (shapes && !a.attributes.at(option).empty()) return beside(option, "--shapes");
  return {};
}

// pipec compile with the scheme and the stages of another trainer's layout.
Status ImportLayout(const Arguments& a) {
  CompileOptions options;
  options.shape = a.shape;
  PP_RETURN_IF_ERROR(ReadLowering(a, &options));
  PP_RETURN_IF_ERROR(CheckMicrobatches(a, options));
  const auto text = CutsText(a.layout);
  PP_RETURN_IF_ERROR(text.status().In("--layout"));
  auto cuts = ReadCuts(*text, options.job.model.layers, a.shape.devices);
  PP_RETURN_IF_ERROR(cuts.status().In("--layout"));
  options.scheme = cuts->scheme;
  options.shape.devices = cuts->devices();
  options.shape.stages_per_device = cuts->stages_per_device;
  options.job.layers_per_stage = std::move(cuts->layers_per_stage);
  return CompileAndSave(a, options);
}

// What belongs to lists, or to a layout.
Status CheckSource(const Arguments& a) {
  const auto wrong = [](const char* text) { return Status::Invalid(text); };
  if (a.layout.empty()) {
    if (a.plans.empty()) return wrong("FILE: is missing (lists, or --layout)");
    if (a.shape.devices > 0) return wrong("--devices: needs --layout (lists have theirs)");
    if (a.shape.microbatches > 0)
      return wrong("--microbatches: needs --layout (lists have theirs)");
    if (a.shape.group_size > 0) return wrong("--group-size: needs --layout (lists have an order)");
    return {};
  }
  if (!a.plans.empty()) return wrong("--layout: and lists in a file (one of the two)");
  if (!a.import_format.empty()) return wrong("--format: is of lists (not with --layout)");
  if (a.model.empty()) return wrong("--layout: needs --model");
  if (a.shape.microbatches == 0 && a.attributes.at("--batch-ramp").empty() &&
      a.attributes.at("--shapes").empty())
    return wrong("--layout: needs --microbatches");
  if (!a.attributes.at("--layers-per-stage").empty())
    return wrong("--layers-per-stage: with --layout, which has the layers (one of the two)");
  return {};
}

}  // namespace

Status CompileCommand(const Arguments& a) {
  PP_RETURN_IF_ERROR(CheckOutput(a));
  CompileOptions options;
  options.scheme = SchemeName(a.scheme);
  options.shape = a.shape;
  PP_RETURN_IF_ERROR(ReadLowering(a, &options));
  PP_RETURN_IF_ERROR(CheckMicrobatches(a, options));
  if (options.scheme == "auto") {
    options.fit.report = nullptr;  // of each scheme
    auto chosen = CompileFastest(options, ObserverOf(a));
    if (!chosen.ok()) return chosen.status();
    std::string rest;
    for (const Chosen::Row& row : chosen->compared)
      rest +=
          fmt::format("{}{} {:g} {}", rest.empty() ? "" : ", ", row.scheme, row.makespan, row.unit);
    Note(a, fmt::format("--scheme auto: {} ({})", chosen->program.scheme, rest));
    PP_RETURN_IF_ERROR(PrintOut(""));
    return SavePlan(a, chosen->program);
  }
  return CompileAndSave(a, options);
}

Status ImportCommand(const Arguments& a) {
  PP_RETURN_IF_ERROR(CheckSource(a));
  PP_RETURN_IF_ERROR(CheckOutput(a));
  if (!a.layout.empty()) return ImportLayout(a);
  const std::string& path = a.plans[0];
  const std::string by_name = path.ends_with(".csv") ? "torch-csv" : "text";
  const std::string& format = a.import_format.empty() ? by_name : a.import_format;
  Result<std::string> read = ReadText(path, "lists in text form or PyTorch's CSV", kMostPlanBytes);
  PP_RETURN_IF_ERROR(read.status());
  std::string& text = *read;
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);  // an editor's byte order mark
  Origin origin{path};
  const auto parse = [&] {
    return format == "text" ? Parse(text, path, &origin.name)
                            : ParseTorchCsv(text, path, &origin.name);
  };
  auto program = parse();
  if (!program.ok()) return program.status();
  if (program->job && program->job->shapes.given())
    for (const char* option : {"--seq-length", "--micro-batch-size", "--shapes"})
      if (!a.attributes.at(option).empty())
        return Status::Invalid(
            fmt::format("{}: {} has shapes of its own (lists say what they are of)", option, path));
  CompileOptions options;
  CopyAttributes(*program, &options);
  options.passes.clear();  // they have been run
  if (program->job) options.job = *program->job;
  PP_RETURN_IF_ERROR(ReadLowering(a, &options));
  auto plan = CompileLists(std::move(*program), origin, options, ObserverOf(a));
  if (!plan.ok()) return WithLines(plan.status(), *parse(), origin.name);
  return SavePlan(a, *plan);
}

}  // namespace pp
