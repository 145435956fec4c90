// pipec: the command line. What each command does is in the other files of this folder.
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "compiler/command.h"
#include "compiler/compile.h"
#include "compiler/interop.h"
#include "compiler/tune/auto.h"
#include "schema/disk.h"
#include "schema/file.h"
#include "schema/nearest.h"
#include "schema/text.h"
#include "schema/version.h"

namespace pp {
namespace {

// What fit-memory must do, and how it reports what it found.
Status AddFit(const Arguments& a, MemoryFit* fit) {
  if (a.memory_limit.empty()) {
    if (!a.search_seconds.empty()) return Status::Invalid("--search-seconds: needs --memory-limit");
    return a.objective.empty() ? Status() : Status::Invalid("--objective: needs --memory-limit");
  }
  if (!a.objective.empty() && a.objective != "step" && a.objective != "period")
    return Status::Invalid(fmt::format("--objective: '{}' (step, period)", a.objective));
  const bool period = a.objective == "period";
  if (period) fit->objective = Objective::kPeriod;
  const char* what = period ? "period at most" : "makespan";
  auto limit = ParseMemoryLimit(a.memory_limit);
  if (!limit.ok()) return limit.status();
  fit->limit = *limit;
  int seconds = 0;
  PP_RETURN_IF_ERROR(ParseNumber("--search-seconds", a.search_seconds, 1, &seconds));
  fit->search_seconds = seconds;
  if (seconds > 0)
    fit->progress = [what](double makespan) {
      fmt::print(std::cerr, "fit-memory: {} {:g}\n", what, makespan);
    };
  const bool bytes = fit->limit.unit == MemoryLimit::kBytes;
  fit->report = [bytes, what](const FitReport& report) {
    std::string bound = "no lower bound (pairs overlap)";
    if (report.lower_bound) {
      const double lower = *report.lower_bound;
      double gap = lower > 0 ? 100 * (report.makespan / lower - 1) : 0;
      if (std::abs(gap) < 1e-9) gap = 0;  // the same sum in another order
      bound = fmt::format("lower bound {:g} (gap {:.1f} %)", lower, gap);
    }
    std::vector<double> peaks = report.peaks;
    for (double& peak : peaks) peak /= bytes ? 1 << 30 : 1;
    fmt::print(std::cerr, "fit-memory: {} {:g}{}, {}, peaks {:.4g}{}\n", what, report.makespan,
               report.whole ? "" : " without STEP and reductions", bound, fmt::join(peaks, " "),
               bytes ? " GiB" : "");
  };
  return {};
}

// The options that compile and import share.
Status ReadLowering(Arguments a, CompileOptions* options) {
  if (!a.reduce.empty()) {
    PP_RETURN_IF_ERROR(OneOf("--reduce", a.reduce, {"early", "late"}));
    options->reduce = a.reduce == "early" ? Reduce::kEarly : Reduce::kLate;
  }
  if (!a.model.empty()) {
    auto model = LoadModelConfig(a.model);
    if (!model.ok()) return model.status();
    // Lists that came with a split into layers refer to a model of that depth.
    if (options->job.model.layers != model->layers) options->job.layers_per_stage.clear();
    options->job.model = *model;
  }
  std::string& layers = a.attributes["--layers-per-stage"];
  options->balance_layers = layers == "auto";
  if (options->balance_layers) layers.clear();
  PP_RETURN_IF_ERROR(ReadAttributes(a, kProgramAttributes<CompileOptions>, options));
  PP_RETURN_IF_ERROR(ReadAttributes(a, kJobAttributes, &options->job));
  if (!a.print_after.empty() && a.print_after != "all" && a.print_after != "scheme" &&
      std::none_of(Passes().begin(), Passes().end(),
                   [&](const Pass& pass) { return pass.name == a.print_after; }))
    return Status::Invalid(
        fmt::format("--print-after: '{}' (all, scheme or a pass)", Shown(a.print_after)));
  PP_RETURN_IF_ERROR(ReadPrices(a, &options->costs, &options->prices));
  return AddFit(a, &options->fit);
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

Status SavePlan(const Arguments& a, const Program& program) {
  PP_RETURN_IF_ERROR(CheckOutput(a));
  a.progress->Doing("writing " + a.output);
  return Save(program, a.output);
}

Status CompileCommand(const Arguments& a) {
  CompileOptions options;
  options.scheme = SchemeName(a.scheme);
  options.shape = {.devices = 0, .microbatches = 0, .stages_per_device = 0};
  PP_RETURN_IF_ERROR(ParseNumber("--devices", a.devices, 1, &options.shape.devices));
  PP_RETURN_IF_ERROR(ParseNumber("--microbatches", a.microbatches, 1, &options.shape.microbatches));
  PP_RETURN_IF_ERROR(
      ParseNumber("--stages-per-device", a.stages_per_device, 1, &options.shape.stages_per_device));
  PP_RETURN_IF_ERROR(ParseNumber("--group-size", a.group_size, 1, &options.shape.group_size));
  PP_RETURN_IF_ERROR(ParseNumber("--pipe-pairs", a.pipe_pairs, 1, &options.shape.pipe_pairs));
  if (!a.stage_map.empty())
    PP_RETURN_IF_ERROR(ReadWholes(a.stage_map, &options.shape.device_of).In("--stage-map"));
  PP_RETURN_IF_ERROR(ReadLowering(a, &options));
  if (options.scheme == "auto") {
    options.fit.report = nullptr;  // of each scheme
    auto chosen = CompileFastest(options, ObserverOf(a));
    if (!chosen.ok()) return chosen.status();
    std::string rest;
    for (const Chosen::Row& row : chosen->compared)
      rest +=
          fmt::format("{}{} {:g} {}", rest.empty() ? "" : ", ", row.scheme, row.makespan, row.unit);
    fmt::print(std::cerr, "--scheme auto: {} ({})\n", chosen->program.scheme, rest);
    PP_RETURN_IF_ERROR(PrintOut(""));
    return SavePlan(a, chosen->program);
  }
  auto program = Compile(options, ObserverOf(a));
  if (!program.ok()) return program.status();
  PP_RETURN_IF_ERROR(PrintOut(""));  // what --print-after wrote
  return SavePlan(a, *program);
}

Status ImportCommand(const Arguments& a) {
  const std::string& path = a.plans[0];
  const std::string by_name = path.ends_with(".csv") ? "torch-csv" : "text";
  const std::string& format = a.import_format.empty() ? by_name : a.import_format;
  PP_RETURN_IF_ERROR(OneOf("--format", format, {"torch-csv", "text"}));
  Result<std::string> read = ReadText(path, "lists in text form or PyTorch's CSV", kMostPlanBytes);
  PP_RETURN_IF_ERROR(read.status());
  std::string& text = *read;
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);  // an editor's byte order mark
  Origin origin{path};
  auto program =
      format == "text" ? Parse(text, path, &origin.name) : ParseTorchCsv(text, path, &origin.name);
  if (!program.ok()) return program.status();
  CompileOptions options;
  CopyAttributes(*program, &options);
  options.passes.clear();  // they have been run
  if (program->job) options.job = *program->job;
  PP_RETURN_IF_ERROR(ReadLowering(a, &options));
  auto plan = CompileLists(std::move(*program), origin, options, ObserverOf(a));
  if (!plan.ok()) return plan.status();
  return SavePlan(a, *plan);
}

// The commands and their options. Returns what the user chose through *command.
void Describe(CLI::App& app, Arguments& a, Command* command) {
  app.require_subcommand(1);
  auto add = [&](const char* name, const char* text, Command run) {
    CLI::App* sub = app.add_subcommand(name, text);
    sub->callback([command, run] { *command = run; });
    return sub;
  };
  auto plans = [&](CLI::App* sub) { sub->add_option("PLAN", a.plans)->required()->type_name(""); };
  auto colour = [&](CLI::App* sub) {
    sub->add_option("--color", a.color, "of a grid: auto (default), always or never");
  };
  auto machine = [&](CLI::App* sub) {
    sub->add_option("--machine", a.machine,
                    "costs of the model on one that `pipec machines` lists, or of a file");
    sub->add_option("--device-flops", a.device_flops,
                    "the same on one that only computes: 312e12, 312TFLOP/s");
  };
  auto attribute = [&]<typename Owner, typename T>(CLI::App* sub, const Attribute<Owner, T>& row) {
    std::string& text = a.attributes[row.option];
    if (std::is_same_v<T, bool> && row.names.empty()) {
      sub->add_flag(row.option, text, row.help);
    } else {
      sub->add_option(row.option, text, row.help);
    }
  };
  auto lowering = [&](CLI::App* sub) {
    sub->add_option("-o,--output", a.output, "the plan to write")->required();
    const auto add_row = [&](const auto& row) { attribute(sub, row); };
    ForEachRow(kProgramAttributes<CompileOptions>, add_row);
    ForEachRow(kJobAttributes, add_row);
    machine(sub);
    sub->add_option("--reduce", a.reduce, "gradients over copies: early (default) or late");
    sub->add_option("--memory-limit", a.memory_limit,
                    "fit-memory: activations per device (1.5, 2:2:1) or bytes (40GiB, 24GB)");
    sub->add_option("--objective", a.objective,
                    "what fit-memory makes short: step (default), or period, from step to step");
    sub->add_option("--search-seconds", a.search_seconds, "how long fit-memory searches");
    sub->add_option("--print-after", a.print_after, "print the program after a pass, or all");
    sub->add_flag("--time-passes", a.time_passes, "print how long each pass took");
    sub->add_option("--model", a.model, "config.json of a Hugging Face model: GPT-2 or LLaMA");
  };
  CLI::App* compile = add("compile", "compile a scheme into a plan", CompileCommand);
  compile
      ->add_option("--scheme", a.scheme, "what `pipec schemes` lists, or auto: the fastest of them")
      ->required();
  compile->add_option("--devices", a.devices, "places in the pipeline, D")->required();
  compile->add_option("--microbatches", a.microbatches, "pieces of a replica's batch, M")
      ->required();
  compile->add_option("--stages-per-device", a.stages_per_device,
                      "V, where a scheme lets one choose (pipec schemes)");
  compile->add_option("--group-size", a.group_size, "N of interleaved (default D)");
  compile->add_option("--pipe-pairs", a.pipe_pairs, "pairs of pipes of chimera (default 1)");
  compile->add_option("--stage-map", a.stage_map, "the device of each stage, as in 0,1,1,0");
  lowering(compile);

  CLI::App* show = add("show", "print a plan", ShowCommand);
  plans(show);
  show->add_option("--device", a.device, "only this list");
  show->add_option("--format", a.format,
                   "text, stages, memory, grid, json, svg, html, chrome-trace or torch-csv");
  colour(show);

  CLI::App* verify = add("verify", "prove plans safe", VerifyCommand);
  plans(verify);
  verify->add_option("--transport", a.transport,
                     "rendezvous (default: nothing is buffered) or nccl (its streams, too)");
  verify->add_option(
      "--communicators", a.communicators,
      "of nccl: auto (default: the fewest that suffice), all, pair, direction or kind");
  verify->add_option("--groups", a.groups,
                     "of nccl: none (default) or adjacent messages in one group");
  verify->add_option("--creation", a.creation,
                     "of nccl's communicators: before (the first step; default) or first-use");
  verify->add_option("--kernels", a.kernels,
                     "of nccl, that run concurrently on a device (default 31; CUDA has 32 queues)");

  CLI::App* simulate = add("simulate", "predict a plan's time and memory", SimulateCommand);
  plans(simulate);
  simulate->add_option("--costs", a.costs, "as for compile (default: those of the plan)");
  machine(simulate);
  simulate->add_option("--transport", a.transport,
                       "async (default: as the plan says), rendezvous (a SEND holds its device) or "
                       "nccl (its streams)");
  simulate->add_option("--shared-links", a.shared_links,
                       "so many consecutive devices share one link out and one in, for their "
                       "messages and reductions (default: each channel has its own)");
  simulate->add_flag("--why", a.why,
                     "also what each device waits for, what that costs, and the critical path");
  simulate->add_option("--trace", a.trace,
                       "what `piperun --trace` wrote of this plan, beside the prediction");
  simulate->add_option("--format", a.format, "text, json, grid, svg, html or chrome-trace");
  colour(simulate);

  CLI::App* tune = add("tune", "find the fastest plan for a model and a machine", TuneCommand);
  tune->add_option("--model", a.model, "as for compile")->required();
  tune->add_option("--devices", a.devices, "of the machine, in all")->required();
  tune->add_option("--global-batch-size", a.global_batch, "sequences in a step")->required();
  tune->add_option("--device-memory", a.device_memory,
                   "of one, as in 80GiB (default: the machine's)");
  machine(tune);
  tune->add_option("--costs", a.costs, "instead: a file that piperun --profile wrote");
  tune->add_option("--scheme", a.scheme, "only this one");
  tune->add_option("--pp", a.pp, "only pipelines of so many devices");
  ForEachRow(kJobAttributes, [&](const auto& row) {
    // The search decides about them.
    const std::string_view option = row.option;
    if (option != "--layers-per-stage" && option != "--recompute") attribute(tune, row);
  });
  tune->add_option("-o,--output", a.output, "the best plan, to write");
  tune->add_option("--format", a.format, "text, json or html");

  CLI::App* import =
      add("import", "make a plan from lists in text form or from PyTorch's CSV", ImportCommand);
  import->add_option("FILE", a.plans)->required()->expected(1)->type_name("");
  import->add_option("--format", a.import_format, "text, or torch-csv (default for FILE.csv)");
  lowering(import);

  auto listing = [&](const char* name, const char* text, Command run) {
    add(name, text, run)->add_option("--format", a.format, "text or json");
  };
  listing("schemes", "list the schemes", SchemesCommand);
  listing("passes", "list the passes", PassesCommand);
  listing("ops", "list the instructions", OpsCommand);
  listing("machines", "list the machines that --machine knows", MachinesCommand);

  // An unset variable in a script is a mistake. An empty list of passes is allowed, though.
  for (CLI::App* sub : app.get_subcommands({}))
    for (CLI::Option* option : sub->get_options())
      if (option->get_expected_max() > 0 && option->get_name() != "--passes")
        option->check([](const std::string& value) {
          return std::string(value.empty() ? "is empty (a value)" : "");
        });
}

std::vector<std::string_view> Views(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

int Fail(const Status& status) {
  fmt::print(std::cerr, "pipec: error: {}\n", OneLine(status.message()));
  return static_cast<int>(status.code());
}

int Main(int argc, char** argv) {
  KeepStandardDescriptors();
  CLI::App app("Compiles, checks, shows and predicts pipeline schedules.", "pipec");
  app.set_version_flag("--version",
                       fmt::format("pipec {}, plans of format {}", kVersion, kPlanFormat));
  Arguments arguments;
  Command command = nullptr;
  Describe(app, arguments, &command);
  // "help COMMAND" is "COMMAND --help".
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  }
  // CLI11 would only report that a command is missing.
  const CLI::App* sub = nullptr;
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands([](CLI::App*) { return true; })) {
    names.push_back(each->get_name());
    if (!words.empty() && words[0] == names.back()) sub = each;
  }
  if (sub == nullptr && !words.empty() && !words[0].starts_with("-"))
    return Fail(Status::Invalid(fmt::format("unknown command '{}' ({}pipec --help)",
                                            Shown(words[0]), DidYouMean(words[0], Views(names)))));
  if (sub == nullptr && !words.empty() && app.get_option_no_throw(words[0]) == nullptr) {
    constexpr std::string_view kOptions[] = {"--help", "--version"};
    return Fail(Status::Invalid(fmt::format("unknown option '{}' ({}pipec --help)", Shown(words[0]),
                                            DidYouMean(words[0], kOptions))));
  }
  // Nor which option is unknown, if a file can also be given.
  for (size_t i = 1; sub != nullptr && i < words.size(); ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    if (name == "--") break;  // what follows are files
    if (!name.starts_with("--") || sub->get_option_no_throw(name)) continue;
    names.clear();
    for (const CLI::Option* option : sub->get_options()) names.push_back(option->get_name());
    return Fail(Status::Invalid(fmt::format("unknown option '{}' ({}pipec {} --help)", Shown(name),
                                            DidYouMean(name, Views(names)), words[0])));
  }
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return Fail(Status::Invalid(fmt::format("{} (pipec{} --help)", Shown(error.what()),
                                            sub != nullptr ? " " + sub->get_name() : "")));
  }
  const char* no_color = std::getenv("NO_COLOR");  // no-color.org
  arguments.terminal = isatty(STDOUT_FILENO) && (no_color == nullptr || *no_color == '\0');
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit must be an error like any other
  Progress progress;
  arguments.progress = &progress;
  const Status status = command(arguments);
  return status.ok() ? 0 : Fail(status);
}

}  // namespace
}  // namespace pp

int main(int argc, char** argv) {
  try {
    return pp::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    return pp::Fail(pp::Status::Failed("out of memory"));
  } catch (const std::system_error& error) {
    return pp::Fail(pp::Status::Failed(error.what()));
  }
}
