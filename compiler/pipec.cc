// pipec: the command line. What each command does is in the other files of this folder.
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "compiler/command.h"
#include "schema/base/disk.h"
#include "schema/base/nearest.h"
#include "schema/base/number.h"
#include "schema/base/units.h"
#include "schema/base/version.h"
#include "schema/cli/options.h"
#include "schema/cli/pages.h"
#include "schema/cli/words.h"
#include "schema/format/file.h"

namespace pp {
namespace {

constexpr std::string_view kShowFormats[] = {"text", "stages", "memory",       "grid",     "json",
                                             "svg",  "html",   "chrome-trace", "torch-csv"};
constexpr std::string_view kSimulateFormats[] = {"text", "json", "grid",
                                                 "svg",  "html", "chrome-trace"};
constexpr std::string_view kTuneFormats[] = {"text", "json", "html"};
constexpr std::string_view kListFormats[] = {"text", "json"};
constexpr std::string_view kImportFormats[] = {"torch-csv", "text"};
constexpr std::string_view kColors[] = {"auto", "always", "never"};
constexpr std::string_view kProofs[] = {"rendezvous", "nccl"};
constexpr std::string_view kReduceNames[] = {"early", "late"};
constexpr std::string_view kObjectiveNames[] = {"step", "period"};
constexpr std::string_view kCommunicators[] = {"auto", "all", "pair", "direction", "kind"};
constexpr std::string_view kGroups[] = {"none", "adjacent"};
constexpr std::string_view kStreams[] = {"communicator", "device"};
constexpr std::string_view kCreations[] = {"before", "first-use"};

// The commands and their options. Returns what the user chose through *command.
class CommandLine {
 public:
  CommandLine(CLI::App& app, Arguments& a, Command* command) : app_(app), a_(a), command_(command) {
    app.require_subcommand(1);
    Compile();
    Import();
    Show();
    Verify();
    Simulate();
    Tune();
    Listing("schemes", "list the schemes", SchemesCommand);
    Listing("passes", "list the passes", PassesCommand);
    Listing("ops", "list the instructions", OpsCommand);
    Listing("values", "list the kinds of values that instructions work on", ValuesCommand);
    Listing("machines", "list the machines that --machine knows", MachinesCommand);
    Add(
        "completion", "print what completes words in bash and zsh",
        [](const Arguments& a) { return PrintOut(a.completion); }, "source <(pipec completion)")
        ->parse_complete_callback([this] {
          std::string schemes = "auto", machines;
          for (const Scheme& scheme : Schemes()) schemes += fmt::format(" {}", scheme.name);
          for (const Machine& machine : Machines()) machines += machine.name + " ";
          a_.completion = CompletionScript(app_, {{"--scheme", schemes}, {"--machine", machines}});
        });
    Add(
        "options", "print the options of all commands as JSON",
        [](const Arguments& a) { return PrintOut(a.options); }, "pipec options")
        ->parse_complete_callback([this] { a_.options = OptionTable(app_); });
    Add(
        "man", "print the manual page", [](const Arguments& a) { return PrintOut(a.manual); },
        "pipec man | man -l -")
        ->parse_complete_callback([this] { a_.manual = ManualPage(app_, "piperun"); });
    // An unset variable in a script is a mistake. An empty list of passes is allowed, though.
    for (CLI::App* sub : app.get_subcommands({}))
      for (CLI::Option* option : sub->get_options())
        if (option->get_expected_max() > 0 && option->get_name() != "--passes")
          option->check([](const std::string& value) {
            return std::string(value.empty() ? "is empty (a value)" : "");
          });
  }

 private:
  CLI::App* Add(const char* name, const char* text, Command run, const std::string& example) {
    CLI::App* sub = app_.add_subcommand(name, text);
    sub->callback([this, run] { *command_ = run; });
    sub->footer("Example:\n  " + example);
    return sub;
  }
  // Files that are read: "-" is standard input.
  void Plans(CLI::App* sub, const char* name = "PLAN") {
    sub->add_option(name, a_.plans, "- is standard input")
        ->required()
        ->type_name("")
        ->transform([](const std::string& path) { return Named(path, kStandardInput); });
  }
  CLI::Option* File(CLI::App* sub, const char* name, const char* help, std::string* path,
                    std::string_view standard, const char* type = "FILE") {
    return options::Add(sub, name, type, help, [=](const std::string& text) {
      *path = Named(text, standard);
      return Status();
    });
  }
  static std::string Named(const std::string& path, std::string_view standard) {
    return path == "-" ? std::string(standard) : path;
  }
  void Quiet(CLI::App* sub) {
    sub->add_flag("-q,--quiet", a_.quiet, "no lines on standard error but errors");
  }
  void Colour(CLI::App* sub) {
    options::AddChoice(sub, "--color", "of a grid", kColors, &a_.color);
  }
  void Model(CLI::App* sub, bool required = false) {
    File(sub, "--model",
         "config.json of a Hugging Face model, or its folder: GPT-2, LLaMA, Mistral, Qwen2, Qwen3",
         &a_.model, kStandardInput)
        ->required(required);
  }
  void Lengths(CLI::App* sub) {
    File(
        sub, "--lengths",
        "--documents, and price attention by how long they are: what tools/tokens --lengths writes",
        &a_.lengths, kStandardInput)
        ->excludes(sub->get_option("--document-length"));
  }
  // Of these three there can be one.
  void Prices(CLI::App* sub, CLI::Option* costs) {
    CLI::Option* machine = options::AddText(
        sub, "--machine", "NAME",
        "costs of the model on one that `pipec machines` lists, or of a file", &a_.machine);
    CLI::Option* flops = options::AddText(sub, "--device-flops", "RATE",
                                          "the same on one that only computes: 312e12, 312TFLOP/s",
                                          &a_.device_flops);
    machine->excludes(costs)->excludes(flops);
    flops->excludes(costs);
  }
  template <typename Owner, typename T>
  CLI::Option* Attribute(CLI::App* sub, const pp::Attribute<Owner, T>& row) {
    return options::AddAttribute(sub, row, &a_.attributes[row.option]);
  }

  CLI::Option* Micros(CLI::App* sub) {
    return options::AddWhole(sub, "--microbatches", "pieces of a replica's batch, M", 1,
                             &a_.shape.microbatches);
  }
  void GroupSize(CLI::App* sub) {
    options::AddWhole(sub, "--group-size", "N of interleaved (default D)", 1, &a_.shape.group_size);
  }
  // What compile and import share. `defaults`: lists do not say otherwise.
  void Lowering(CLI::App* sub, bool defaults) {
    File(sub, "-o,--output", "the plan to write; - is standard output", &a_.output, kStandardOutput,
         "PLAN")
        ->required();
    const auto attribute = [&](const auto& row) {
      CLI::Option* option = Attribute(sub, row);
      if (!defaults) option->default_str("");
    };
    ForEachRow(kProgramAttributes<Program>, attribute);
    ForEachRow(kJobAttributes, attribute);
    Lengths(sub);
    Model(sub);
    Prices(sub, sub->get_option("--costs"));
    options::AddChoice(sub, "--reduce",
                       "gradients over copies: as soon as they are complete, or last", kReduceNames,
                       &a_.reduce)
        ->default_str("early");
    CLI::Option* limit =
        options::Add(sub, "--memory-limit", "LIMIT",
                     "fit-memory: activations per device (1.5, 2:2:1) or bytes (40GiB, 24GB)",
                     [this](const std::string& text) {
                       const auto read = ParseMemoryLimit(text);
                       if (read.ok()) a_.fit.limit = *read;
                       return read.status();
                     });
    options::AddChoice(sub, "--objective",
                       "what fit-memory makes short: a step, or from step to step", kObjectiveNames,
                       &a_.fit.objective)
        ->needs(limit);
    options::AddWhole(sub, "--search-seconds",
                      "how long fit-memory searches (default: a fixed amount of work)", 1,
                      &a_.search_seconds)
        ->needs(limit);
    sub->add_flag("--evaluation", a_.evaluates,
                  "also the forwards of a batch alone, for its loss (with --model always)");
    options::Add(sub, "--print-after", "PASS", "print the program after a pass, or all",
                 [this](const std::string& text) { return ReadPass(text); });
    sub->add_flag("--time-passes", a_.time_passes, "print how long each pass took");
    Quiet(sub);
  }
  Status ReadPass(const std::string& text) {
    a_.print_after = text;
    const bool known = text == "all" || text == "scheme" ||
                       std::any_of(Passes().begin(), Passes().end(),
                                   [&](const Pass& pass) { return pass.name == text; });
    return known ? Status()
                 : Status::Invalid(fmt::format("'{}' (all, scheme or a pass)", Shown(text)));
  }

  void Compile() {
    CLI::App* sub = Add("compile", "compile a scheme into a plan", CompileCommand,
                        "pipec compile --scheme 1f1b --devices 4 --microbatches 8 -o 1f1b.plan");
    options::AddText(sub, "--scheme", "NAME",
                     "what `pipec schemes` lists, or auto: the fastest of them", &a_.scheme)
        ->required();
    options::AddWhole(sub, "--devices", "places in the pipeline, D", 1, &a_.shape.devices)
        ->required();
    Micros(sub);
    options::AddWhole(sub, "--stages-per-device",
                      "V, where a scheme lets one choose (pipec schemes)", 1,
                      &a_.shape.stages_per_device);
    GroupSize(sub);
    options::AddWhole(sub, "--pipe-pairs", "pairs of pipes of chimera", 1, &a_.shape.pipe_pairs);
    options::Add(sub, "--stage-map", "LIST", "the device of each stage, as in 0,1,1,0",
                 [this](const std::string& text) { return ReadWholes(text, &a_.shape.device_of); });
    Lowering(sub, /*defaults=*/true);
  }

  void Import() {
    CLI::App* sub =
        Add("import", "make a plan from lists in text form, PyTorch's CSV, or another's layout",
            ImportCommand, "pipec show 1f1b.plan > lists.txt; pipec import lists.txt -o own.plan");
    Plans(sub, "FILE");
    sub->get_option("FILE")->expected(1)->required(false);
    File(
        sub, "--layout",
        "instead: stages as Megatron-LM (Et*2|(t*2|)*3tL) or torchtitan (a list of lists of names) "
        "has them, or a file of it (./FILE)",
        &a_.layout, kStandardInput, "LAYOUT");
    options::AddWhole(sub, "--devices", "of a layout, D (default: a stage each)", 1,
                      &a_.shape.devices);
    Micros(sub);
    GroupSize(sub);
    options::AddChoice(sub, "--format", "torch-csv for FILE.csv, else text", kImportFormats,
                       &a_.import_format);
    Lowering(sub, /*defaults=*/false);
  }

  void Routine(CLI::App* sub) {
    options::AddText(sub, "--routine", "NAME",
                     "which of a plan's lists: of a step, an evaluation, or step-8 of --batch-ramp",
                     &a_.routine)
        ->default_str(a_.routine);
  }

  void Show() {
    CLI::App* sub = Add("show", "print a plan", ShowCommand, "pipec show --format grid 1f1b.plan");
    Plans(sub);
    Routine(sub);
    options::AddWhole(sub, "--device", "only this list", 0, &a_.device);
    options::AddChoice(sub, "--format", "what to print", kShowFormats, &a_.format);
    options::AddChoice(sub, "--messages",
                       "of torch-csv: PyTorch adds them (compute_only), or the plan's "
                       "(compute_comms)",
                       kTorchMessages, &a_.messages);
    Colour(sub);
    Quiet(sub);
  }

  void Verify() {
    CLI::App* sub =
        Add("verify", "prove plans safe", VerifyCommand, "pipec verify --transport nccl 1f1b.plan");
    Plans(sub);
    options::AddChoice(sub, "--transport", "nothing is buffered, or NCCL's streams, too", kProofs,
                       &a_.nccl)
        ->default_str("rendezvous");
    const auto of_nccl = [&]<typename T>(const char* name, const char* help, ValueNames names,
                                         T* value) {
      CLI::Option* option = options::AddChoice(sub, name, help, names, value);
      option->each([this, name](const std::string& text) {
        a_.of_nccl = fmt::format("{}: {}", name, text);
      });
      return option;
    };
    of_nccl("--communicators", "of nccl: the fewest that suffice, or as many as named",
            kCommunicators, &a_.communicators);
    of_nccl("--groups", "of nccl: adjacent messages in one group", kGroups, &a_.terms.groups);
    of_nccl("--creation", "of nccl's communicators: before the first step, or when they are needed",
            kCreations, &a_.terms.creation);
    of_nccl("--streams", "of nccl: one for each communicator, or for all of a device", kStreams,
            &a_.terms.stream_per);
    const auto number = [&](const char* name, const char* help, int most, int* value) {
      return options::Add(sub, name, "N", help, [=, this](const std::string& text) {
        a_.of_nccl = fmt::format("{}: {}", name, text);
        return ReadWhole(text, 1, most, value);
      });
    };
    options::AddChoice(sub, "--format", "what to print", kListFormats, &a_.format);
    number("--kernels", "of nccl, that run concurrently on a device (default: any number)",
           INT32_MAX, &a_.terms.kernels);
    number("--queues", "hardware queues of a device (CUDA_DEVICE_MAX_CONNECTIONS)",
           nccl::kMostQueues, &a_.terms.queues)
        ->default_str(fmt::format("{}", nccl::kMostQueues));
    Quiet(sub);
  }

  void Simulate() {
    CLI::App* sub = Add("simulate", "predict a plan's time and memory", SimulateCommand,
                        "pipec simulate --why 1f1b.plan");
    Plans(sub);
    Routine(sub);
    Prices(sub, File(sub, "--costs", "as for compile (default: those of the plan)", &a_.costs,
                     kStandardInput, "LIST"));
    options::AddChoice(sub, "--transport",
                       "as the plan says, or a SEND holds its device, or NCCL's streams",
                       kTransports, &a_.network.transport);
    options::AddWhole(sub, "--shared-links",
                      "so many consecutive devices share one link out and one in, for their "
                      "messages and reductions (default: each channel has its own)",
                      1, &a_.network.shared_links);
    sub->add_flag("--why", a_.why,
                  "also what each device waits for, what that costs, and the critical path");
    File(sub, "--trace", "what `piperun --trace` wrote of this plan, beside the prediction",
         &a_.trace, kStandardInput);
    options::AddChoice(sub, "--format", "what to print", kSimulateFormats, &a_.format);
    Colour(sub);
    Quiet(sub);
  }

  void Tune() {
    CLI::App* sub = Add("tune", "find the fastest plan for a model and a machine", TuneCommand,
                        "pipec tune --model config.json --machine a100-40g --devices 8 "
                        "--global-batch-size 64 -o best.plan");
    Model(sub, /*required=*/true);
    options::AddWhole(sub, "--devices", "of the machine, in all", 1, &a_.shape.devices)->required();
    options::AddWhole(sub, "--global-batch-size", "sequences in a step", 1, &a_.batch)->required();
    options::Add(sub, "--device-memory", "BYTES", "of one, as in 80GiB (default: the machine's)",
                 [this](const std::string& text) {
                   const auto memory = ReadQuantity(text);
                   if (!memory || memory->dimension != Dimension::kBytes || memory->value < 1)
                     return Status::Invalid(fmt::format("'{}' (bytes as in 80GiB)", Shown(text)));
                   a_.device_memory = memory->value;
                   return Status();
                 });
    Prices(sub,
           File(sub, "--costs", "instead: files that piperun --profile wrote, separated by commas",
                &a_.costs, kStandardInput));
    options::AddText(sub, "--scheme", "NAME", "only this one", &a_.scheme);
    options::AddWhole(sub, "--pp", "only pipelines of so many devices", 1, &a_.pp);
    options::AddWhole(sub, "--stages-per-device", "only so many", 1, &a_.shape.stages_per_device);
    ForEachRow(kProgramAttributes<Program>, [&](const auto& row) {
      const std::string_view option = row.option;
      if (option == "--dp" || option == "--zero" || option == "--rank-order")
        Attribute(sub, row)->default_str("");
    });
    options::AddText(sub, "--beside", "LAYOUT",
                     "compare with another trainer's, as for import --layout, or a file of it",
                     &a_.beside);
    options::AddWhole(sub, "--search-seconds",
                      "how long fit-memory searches for each plan that it fits (default: not)", 1,
                      &a_.search_seconds);
    options::Add(
        sub, "--tokens", "N", "of a training, whose days are printed: 1.5e12",
        [this](const std::string& text) {
          const bool right = ReadNumber(text, &a_.tokens) && a_.tokens >= 1 && a_.tokens <= 1e24;
          return right ? Status()
                       : Status::Invalid(fmt::format("'{}' (a number, as in 1.5e12)", Shown(text)));
        });
    ForEachRow(kJobAttributes, [&](const auto& row) {
      // The search decides about them.
      const std::string_view option = row.option;
      if (option != "--layers-per-stage" && option != "--recompute")
        Attribute(sub, row)->default_str(option == "--dtype" ? "fp32" : "");
    });
    Lengths(sub);
    File(sub, "-o,--output",
         "the best plan, to write; - is standard output, and standard error gets the report",
         &a_.output, kStandardOutput, "PLAN");
    options::AddChoice(sub, "--format", "what to print", kTuneFormats, &a_.format);
    Quiet(sub);
  }

  void Listing(const char* name, const char* text, Command run) {
    CLI::App* sub = Add(name, text, run, fmt::format("pipec {} --format json", name));
    options::AddChoice(sub, "--format", "what to print", kListFormats, &a_.format);
  }

  CLI::App& app_;
  Arguments& a_;
  Command* command_;
};

constexpr Renamed kRenamed[] = {{"--clip", "--grad-norm"}};

std::vector<std::string_view> Views(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

int Fail(const Status& status) {
  fmt::print(std::cerr, "pipec: error: {}\n", OneLine(status.message()));
  return static_cast<int>(status.code());
}

int PrintHelp(const CLI::App& app, const CLI::ParseError& help) {
  std::ostringstream text;
  app.exit(help, text);
  const Status status = PrintOut(text.str());
  return status.ok() ? 0 : Fail(status);
}

int Main(int argc, char** argv) {
  KeepStandardDescriptors();
  CLI::App app("Compiles, checks, shows and predicts pipeline schedules.", "pipec");
  app.set_version_flag("--version",
                       fmt::format("pipec {}, plans of format {}", kVersion, kPlanFormat));
  Arguments arguments;
  Command command = nullptr;
  const CommandLine line(app, arguments, &command);
  // "help COMMAND" is "COMMAND --help".
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  }
  const std::vector<std::string> notes = UseNewNames(kRenamed, &words);
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
  if (sub != nullptr) {
    const Status right = CheckWords(*sub, "pipec " + words[0], {words.begin() + 1, words.end()});
    if (!right.ok()) return Fail(right);
  }
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  try {
    app.parse(words);
  } catch (const options::Refused& refused) {
    return Fail(refused.status);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return PrintHelp(app, error);
    return Fail(Status::Invalid(fmt::format("{} (pipec{} --help)", Shown(error.what()),
                                            sub != nullptr ? " " + sub->get_name() : "")));
  }
  const char* no_color = std::getenv("NO_COLOR");  // no-color.org
  arguments.terminal = isatty(STDOUT_FILENO) && (no_color == nullptr || *no_color == '\0');
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit must be an error like any other
  if (!arguments.quiet)
    for (const std::string& note : notes) fmt::print(std::cerr, "pipec: {}\n", note);
  Progress progress(/*shown=*/!arguments.quiet);
  arguments.progress = &progress;
  const Status status = command(arguments);
  return status.ok() ? 0 : Fail(status);
}

}  // namespace
}  // namespace pp

int main(int argc, char** argv) {
  // Large lists are made and given up over and over: memory that the process has, it keeps, rather
  // than have the system clear its pages each time.
  mallopt(M_MMAP_THRESHOLD, INT_MAX);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  try {
    return pp::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    return pp::Fail(pp::Status::Failed("out of memory"));
  } catch (const std::system_error& error) {
    return pp::Fail(pp::Status::Failed(error.what()));
  }
}
