// pipec tune: the plan for a model, a machine and a batch, and why not another one.
#include "compiler/tune/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/command.h"
#include "compiler/cuts.h"
#include "compiler/tune/report.h"
#include "schema/base/nearest.h"
#include "schema/format/file.h"

namespace pp {
namespace {

Status ReadOptions(const Arguments& a, TuneOptions* options) {
  std::vector<std::string> unknown;
  auto model = LoadModelConfig(a.model, &unknown);
  if (!model.ok()) return model.status();
  if (!unknown.empty()) Note(a, "pipec: " + UnknownKeysNote(a.model, unknown));
  options->job.model = *model;
  PP_RETURN_IF_ERROR(ReadAttributes(a, kJobAttributes, &options->job));
  if (options->job.sequence_length == 0) options->job.sequence_length = model->max_positions;
  options->job.lora = WithTargets(options->job);
  PP_RETURN_IF_ERROR(ReadLengths(a, &options->job));
  if (!a.attributes.at("--tp").empty()) options->tp = options->job.tp;
  if (!a.attributes.at("--micro-batch-size").empty())
    options->micro_batch_size = options->job.micro_batch_size;
  options->devices = a.shape.devices;
  options->batch = a.batch;
  options->pp = a.pp;
  CompileOptions fixed;
  PP_RETURN_IF_ERROR(ReadAttributes(a, kProgramAttributes<CompileOptions>, &fixed));
  const auto given = [&](const char* option) { return !a.attributes.at(option).empty(); };
  if (given("--dp")) options->dp = fixed.replicas;
  if (given("--zero")) options->zero = fixed.zero;
  if (given("--rank-order")) options->rank_order = fixed.rank_order;
  options->stages_per_device = a.shape.stages_per_device;
  options->sequence_parallel = given("--sequence-parallel");
  options->keep = given("--keep");
  options->search_seconds = a.search_seconds;
  options->tokens = a.tokens;
  if (!a.beside.empty()) {
    const auto text = CutsText(a.beside);
    PP_RETURN_IF_ERROR(text.status().In("--beside"));
    auto cuts = ReadCuts(*text, model->layers, a.pp);
    PP_RETURN_IF_ERROR(cuts.status().In("--beside"));
    options->beside = std::move(cuts->layers_per_stage);
  }
  PriceSource prices;
  std::string costs = a.costs;
  PP_RETURN_IF_ERROR(ReadPrices(a, &costs, &prices));
  if (prices.stages)
    return Status::Invalid(fmt::format(
        "--costs: {}: costs of stages, not of a model (a file that piperun --profile wrote)",
        prices.names));
  if (!prices.given() || !costs.empty())
    return Status::Invalid(
        "--machine, --device-flops: missing (one of the two, or --costs with a profile)");
  options->machine = prices.machine ? *prices.machine : FitMachine(prices.profiles);
  options->profiles = prices.profiles;
  // The printed commands take the same profiles, for one model.
  for (const Profile& profile : prices.profiles) {
    const Job& measured = profile.job;
    if (!(measured.model == options->job.model))
      return Status::Invalid(
          fmt::format("--costs: {}: was measured of another model (--model)", prices.names));
    if (measured.dtype != options->job.dtype || measured.backend != options->job.backend)
      return Status::Invalid(
          fmt::format("--costs: {}: was measured with {} on {} (the --dtype and --backend given)",
                      prices.names, NameOf(measured.dtype), NameOf(measured.backend)));
  }
  options->scheme = SchemeName(a.scheme);
  if (!a.scheme.empty()) {
    std::vector<std::string_view> names;
    for (const Scheme& scheme : Schemes()) names.push_back(scheme.name);
    if (std::find(names.begin(), names.end(), options->scheme) == names.end())
      return Status::Invalid(fmt::format("--scheme: unknown scheme '{}' ({}pipec schemes)",
                                         Shown(a.scheme), DidYouMean(a.scheme, names)));
  }
  // What is given may be all that the device has, of which not all is usable.
  options->memory = options->machine.Usable();
  if (a.device_memory > 0)
    options->memory =
        options->memory > 0 ? std::min(a.device_memory, options->memory) : a.device_memory;
  if (options->memory > 0) return {};
  return Status::Invalid(
      fmt::format("--device-memory: missing, and {} does not say", options->machine.name));
}

// One word of a command line, quoted where a shell would read more into it; what cannot be seen is
// written out.
std::string Word(const std::string& text) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) || std::strchr("_-./=:,+@%", c);
  };
  if (std::all_of(text.begin(), text.end(), plain)) return text;
  const bool visible = Shown(text) == text;
  std::string word = visible ? "'" : "$'";
  for (const char c : text) {
    if (visible) {
      c == '\'' ? word += "'\\''" : word += c;
    } else {
      const bool itself = c >= ' ' && c <= '~' && c != '\'' && c != '\\';
      word += itself ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return word + "'";
}

// As the options that compile a candidate name them.
TuneWords WordsOf(const Arguments& a) {
  const bool named = !a.output.empty() && a.output != kStandardOutput;
  TuneWords words{
      .model = Word(a.model), .plan = named ? Word(a.output) : "PLAN", .beside = a.beside};
  for (const auto& [option, text] : {std::pair("--costs ", a.costs),
                                     {"--machine ", a.machine},
                                     {"--device-flops ", a.device_flops}})
    if (!text.empty()) words.prices = option + Word(text);
  return words;
}

}  // namespace

Status TuneCommand(const Arguments& a) {
  PP_RETURN_IF_ERROR(CheckOutput(a));
  TuneOptions options;
  PP_RETURN_IF_ERROR(ReadOptions(a, &options));
  if (!a.machine.empty() && a.attributes.at("--backend").empty())
    Note(a, "pipec: memory is counted for --backend cpu (GPUs: --backend cuda)");
  options.progress = [&a](const std::string& what) { a.progress->Doing(what); };
  const auto tuned = Tune(options);
  if (!tuned.ok()) return tuned.status();
  if (!a.output.empty()) PP_RETURN_IF_ERROR(Save(*tuned->plan, a.output));
  const TuneReport report(options, *tuned, WordsOf(a));
  std::string text = a.format == "json"   ? report.Json() + "\n"
                     : a.format == "html" ? report.Page()
                                          : report.Text();
  if (a.output != kStandardOutput) return PrintOut(text);
  text.pop_back();  // Note ends the line
  Note(a, text);
  return {};
}

}  // namespace pp
