// pipec tune: the plan for a model, a machine and a batch, and why not another one.
#include "compiler/tune/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compiler/command.h"
#include "schema/file.h"
#include "schema/units.h"

namespace pp {
namespace {

constexpr double kGiB = int64_t{1} << 30;

Status ReadMemory(const Arguments& a, TuneOptions* options) {
  options->memory = options->machine.memory;
  if (a.device_memory.empty()) {
    if (options->memory > 0) return {};
    return Status::Invalid(
        fmt::format("--device-memory: missing, and {} does not say", options->machine.name));
  }
  const auto memory = ReadQuantity(a.device_memory);
  if (!memory || memory->dimension != Dimension::kBytes || memory->value < 1)
    return Status::Invalid(
        fmt::format("--device-memory: '{}' (bytes as in 80GiB)", Shown(a.device_memory)));
  options->memory = memory->value;
  return {};
}

Status ReadOptions(const Arguments& a, TuneOptions* options) {
  auto model = LoadModelConfig(a.model);
  if (!model.ok()) return model.status();
  options->job.model = *model;
  PP_RETURN_IF_ERROR(ReadAttributes(a, kJobAttributes, &options->job));
  if (options->job.sequence_length == 0) options->job.sequence_length = model->max_positions;
  if (!a.attributes.at("--tp").empty()) options->tp = options->job.tp;
  if (!a.attributes.at("--micro-batch-size").empty())
    options->micro_batch_size = options->job.micro_batch_size;
  PP_RETURN_IF_ERROR(ParseNumber("--devices", a.devices, 1, &options->devices));
  PP_RETURN_IF_ERROR(ParseNumber("--global-batch-size", a.global_batch, 1, &options->batch));
  PP_RETURN_IF_ERROR(ParseNumber("--pp", a.pp, 1, &options->pp));
  PriceSource prices;
  std::string costs = a.costs;
  PP_RETURN_IF_ERROR(ReadPrices(a, &costs, &prices));
  if (!prices.given() || !costs.empty())
    return Status::Invalid(
        "--machine, --device-flops: missing (one of the two, or --costs with a profile)");
  options->machine = prices.machine ? *prices.machine : FitMachine(*prices.profile);
  if (prices.profile && (prices.profile->job.dtype != options->job.dtype ||
                         prices.profile->job.backend != options->job.backend))
    return Status::Invalid(fmt::format(
        "--costs: {}: was measured with {} on {} (the --dtype and --backend given)", prices.name,
        NameOf(prices.profile->job.dtype), NameOf(prices.profile->job.backend)));
  options->scheme = a.scheme;
  if (!a.scheme.empty() &&
      std::none_of(Schemes().begin(), Schemes().end(),
                   [&](const Scheme& scheme) { return scheme.name == a.scheme; }))
    return Status::Invalid(fmt::format("--scheme: '{}' (pipec schemes)", Shown(a.scheme)));
  return ReadMemory(a, options);
}

std::string NameOf(const Candidate& candidate) {
  const CompileOptions& c = candidate.compile;
  std::string name = c.shape.devices == 1 ? "no pipeline" : c.scheme;
  if (c.shape.stages_per_device > 0) name += fmt::format(" V={}", c.shape.stages_per_device);
  return name;
}

// What each device would do at its peak, all of it useful.
double Utilization(const TuneOptions& options, const Tuned& tuned, double seconds) {
  const double peak = options.machine.flops[static_cast<int>(options.job.dtype)];
  return tuned.model_operations / seconds / options.devices / peak;
}

std::string Row(const TuneOptions& options, const Tuned& tuned, const Candidate& c) {
  const double tokens =
      static_cast<double>(options.batch) * static_cast<double>(options.job.sequence_length);
  return fmt::format(
      "{:<16} {:>3} {:>3} {:>4} {:>4} {:>5}  {:<17} {:>9.4g} {:>10.4g} {:>6.1f} "
      "{:>6.1f} {:>9.2f}\n",
      NameOf(c), c.compile.shape.devices, c.compile.job.tp, c.compile.replicas,
      c.compile.job.micro_batch_size, c.compile.shape.microbatches,
      c.compile.passes.empty() ? "-" : c.compile.passes, c.seconds, tokens / c.seconds,
      c.bubble * 100, Utilization(options, tuned, c.seconds) * 100, c.bytes / kGiB);
}

std::string CompileLine(const Arguments& a, const Candidate& best) {
  const CompileOptions& c = best.compile;
  std::string line = fmt::format(
      "pipec compile --scheme {} --devices {} --microbatches {} --model {} --layers-per-stage auto "
      "--micro-batch-size {}",
      c.scheme, c.shape.devices, c.shape.microbatches, a.model, c.job.micro_batch_size);
  const auto add = [&](bool is, const std::string& text) {
    if (is) line += " " + text;
  };
  add(c.shape.stages_per_device > 0,
      fmt::format("--stages-per-device {}", c.shape.stages_per_device));
  add(c.job.tp > 1, fmt::format("--tp {}", c.job.tp));
  add(c.replicas > 1, fmt::format("--dp {}", c.replicas));
  add(c.zero > 0, "--zero 1");
  add(!c.passes.empty(), "--passes " + c.passes);
  add(c.job.sequence_length != c.job.model.max_positions,
      fmt::format("--seq-length {}", c.job.sequence_length));
  add(c.job.sequence_parallel, "--sequence-parallel");
  add(c.job.dtype != Dtype::kFp32, fmt::format("--dtype {}", NameOf(c.job.dtype)));
  add(c.job.backend != DeviceKind::kCpu, fmt::format("--backend {}", NameOf(c.job.backend)));
  add(!a.costs.empty(), "--costs " + a.costs);
  add(!a.machine.empty(), "--machine " + a.machine);
  add(!a.device_flops.empty(), "--device-flops " + a.device_flops);
  add(true, "-o " + (a.output.empty() ? std::string("PLAN") : a.output));
  return line;
}

std::string ToText(const Arguments& a, const TuneOptions& options, const Tuned& tuned) {
  std::string out =
      fmt::format("{} devices of {}, {:.4g} GiB each; {} sequences of {} tokens a step, {}\n",
                  options.devices, options.machine.name, options.memory / kGiB, options.batch,
                  options.job.sequence_length, NameOf(options.job.dtype));
  out +=
      fmt::format("{:<16} {:>3} {:>3} {:>4} {:>4} {:>5}  {:<17} {:>9} {:>10} {:>6} {:>6} {:>9}\n",
                  "scheme", "pp", "tp", "dp", "size", "M", "recomputes", "s/step", "tokens/s",
                  "idle %", "MFU %", "peak GiB");
  for (const Candidate& candidate : tuned.best) out += Row(options, tuned, candidate);
  const Candidate& best = tuned.best.front();
  if (!tuned.rest.empty())
    out += fmt::format(
        "{} more take at least {:.4g} s: {} by a bound on their work, {} on their schedule\n",
        tuned.rest.size(), tuned.rest.front().seconds,
        std::count_if(tuned.rest.begin(), tuned.rest.end(),
                      [](const auto& c) { return c.level == Level::kWork; }),
        std::count_if(tuned.rest.begin(), tuned.rest.end(),
                      [](const auto& c) { return c.level != Level::kWork; }));
  // The one that would be fastest, if there were memory.
  if (!tuned.large.empty()) {
    const Candidate& fastest =
        *std::min_element(tuned.large.begin(), tuned.large.end(),
                          [](const auto& x, const auto& y) { return x.seconds < y.seconds; });
    out += fmt::format("{} do not fit", tuned.large.size());
    if (fastest.seconds < best.seconds)
      out += fmt::format(
          "; {} with pp {}, tp {}, dp {}, size {} could take {:.4g} s, but needs "
          "{:.2f} GiB or more ({})",
          NameOf(fastest), fastest.compile.shape.devices, fastest.compile.job.tp,
          fastest.compile.replicas, fastest.compile.job.micro_batch_size, fastest.seconds,
          fastest.bytes / kGiB, fastest.lacks);
    out += "\n";
  }
  if (tuned.best.size() > 1) {
    const Candidate& second = tuned.best[1];
    out += fmt::format("the next best is {:.2g} % slower\n",
                       (second.seconds / best.seconds - 1) * 100);
  }
  const std::string run = fmt::format(
      "-n {} piperun {} --data FILE{}\n", options.devices, a.output.empty() ? "PLAN" : a.output,
      options.job.backend == DeviceKind::kCuda ? " --backend cuda" : "");
  return out + "\n" + CompileLine(a, best) + "\nmpiexec " + run + "srun " + run;
}

std::string ToJson(const TuneOptions& options, const Tuned& tuned) {
  const double tokens =
      static_cast<double>(options.batch) * static_cast<double>(options.job.sequence_length);
  const auto row = [&](const Candidate& c) {
    nlohmann::json json{{"scheme", c.compile.scheme},
                        {"stages_per_device", c.compile.shape.stages_per_device},
                        {"pp", c.compile.shape.devices},
                        {"tp", c.compile.job.tp},
                        {"dp", c.compile.replicas},
                        {"micro_batch_size", c.compile.job.micro_batch_size},
                        {"microbatches", c.compile.shape.microbatches},
                        {"zero", c.compile.zero},
                        {"passes", c.compile.passes},
                        {"fits", c.fits}};
    const bool exact = c.level == Level::kPlan;
    json[exact ? "step_seconds" : "step_seconds_at_least"] = c.seconds;
    json[exact ? "peak_bytes" : "peak_bytes_at_least"] = static_cast<int64_t>(c.bytes);
    if (exact) {
      json["tokens_per_second"] = tokens / c.seconds;
      json["bubble"] = c.bubble;
      json["mfu"] = Utilization(options, tuned, c.seconds);
    }
    if (!c.fits) json["why"] = c.lacks;
    return json;
  };
  nlohmann::json out{{"search_seconds", tuned.seconds}, {"best", row(tuned.best.front())}};
  for (const auto* list : {&tuned.best, &tuned.rest, &tuned.large})
    for (const Candidate& candidate : *list) out["candidates"].push_back(row(candidate));
  return out.dump() + "\n";
}

}  // namespace

Status TuneCommand(const Arguments& a) {
  PP_RETURN_IF_ERROR(OneOf("--format", a.format, {"text", "json"}));
  TuneOptions options;
  PP_RETURN_IF_ERROR(ReadOptions(a, &options));
  options.progress = [&a](const std::string& what) { a.progress->Doing(what); };
  const auto tuned = Tune(options);
  if (!tuned.ok()) return tuned.status();
  if (!a.output.empty()) PP_RETURN_IF_ERROR(Save(*tuned->plan, a.output));
  return PrintOut(a.format == "json" ? ToJson(options, *tuned) : ToText(a, options, *tuned));
}

}  // namespace pp
