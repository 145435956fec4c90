#include "runtime/main/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <climits>
#include <cmath>
#include <functional>
#include <initializer_list>

#include "runtime/files/checkpoint.h"
#include "schema/base/disk.h"
#include "schema/base/number.h"
#include "schema/base/version.h"
#include "schema/cli/pages.h"

namespace pp {
namespace {

Status ParseWhole(const char* option, const std::string& text, int64_t least, int64_t most,
                  int64_t* number) {
  if (ReadNumber(text, number) && *number >= least && *number <= most) return {};
  return Status::Invalid(
      fmt::format("{}: '{}' (a whole number from {} to {})", option, Shown(text), least, most));
}

Status ParseReal(const char* option, const std::string& text, double* number) {
  if (ReadNumber(text, number) && std::isfinite(*number) && *number >= 0) return {};
  return Status::Invalid(fmt::format("{}: '{}' (a number from 0)", option, Shown(text)));
}

Status OneOf(const char* option, const std::string& text,
             std::initializer_list<const char*> known) {
  if (std::find(known.begin(), known.end(), text) != known.end()) return {};
  return Status::Invalid(fmt::format("{}: '{}' ({})", option, Shown(text), fmt::join(known, ", ")));
}

// How long it trains, from which state, and where the new state goes.
Status ParseTraining(const Arguments& a, TrainOptions* options) {
  int64_t& steps = options->optimizer.steps;
  steps = 100;
  if (!a.steps.empty()) PP_RETURN_IF_ERROR(ParseWhole("--steps", a.steps, 1, INT32_MAX, &steps));
  if (!a.epochs.empty())
    PP_RETURN_IF_ERROR(ParseWhole("--epochs", a.epochs, 1, INT32_MAX, &options->epochs));
  if (!a.steps.empty() && !a.epochs.empty())
    return Status::Invalid(
        fmt::format("--epochs: {} with --steps {} (one of them)", a.epochs, a.steps));
  if (!a.seed.empty()) {
    int64_t seed = 0;
    PP_RETURN_IF_ERROR(ParseWhole("--seed", a.seed, 0, INT64_MAX, &seed));
    options->seed = static_cast<uint64_t>(seed);
  }
  if (!a.save_every.empty())
    PP_RETURN_IF_ERROR(
        ParseWhole("--save-every", a.save_every, 1, INT32_MAX, &options->save_every));
  for (const auto& [given, option] :
       {std::pair{!a.save_every.empty(), "--save-every"}, std::pair{a.resume, "--resume"}})
    if (given && a.save.empty()) return Status::Invalid(fmt::format("{}: needs --save", option));
  if (a.new_data && !a.resume) return Status::Invalid("--new-data: needs --resume");
  if (a.resume && !a.weights.empty())
    return Status::Invalid("--resume: has weights of its own (without --weights)");
  options->data = a.data;
  options->weights = a.weights;
  options->save = a.save;
  while (options->save.size() > 1 && options->save.back() == '/') options->save.pop_back();
  options->resume = a.resume;
  options->new_data = a.new_data;
  options->exports = !a.export_to.empty();
  options->export_path = a.export_to;
  return {};
}

Status ParseEvaluations(const Arguments& a, TrainOptions* options) {
  if (!a.val_every.empty())
    PP_RETURN_IF_ERROR(ParseWhole("--val-every", a.val_every, 1, INT32_MAX, &options->val_every));
  if (!a.val_batches.empty()) {
    int64_t batches = 0;
    PP_RETURN_IF_ERROR(ParseWhole("--val-batches", a.val_batches, 1, INT32_MAX, &batches));
    options->val_batches = batches;
  }
  for (const auto& [value, option] :
       {std::pair{&a.val_every, "--val-every"}, std::pair{&a.val_batches, "--val-batches"}})
    if (!value->empty() && a.val_data.empty())
      return Status::Invalid(fmt::format("{}: needs --val-data", option));
  options->val_data = a.val_data;
  if (!a.sample.empty())
    PP_RETURN_IF_ERROR(ParseWhole("--sample", a.sample, 1, 1 << 20, &options->sample));
  if (a.temperature.empty()) return {};
  double temperature = 0;
  const Status status = ParseReal("--temperature", a.temperature, &temperature);
  if (!status.ok() || (temperature != 0 && (temperature < 1e-3 || temperature > 1e3)))
    return Status::Invalid(fmt::format("--temperature: '{}' (0, or a number from 0.001 to 1000)",
                                       Shown(a.temperature)));
  if (a.sample.empty()) return Status::Invalid("--temperature: needs --sample");
  options->temperature = static_cast<float>(temperature);
  return {};
}

// The backend and the transport.
Status ParseMachine(const Arguments& a, TrainOptions* options) {
  int64_t threads = 0;
  PP_RETURN_IF_ERROR(ParseWhole("--threads", a.threads, 1, 1024, &threads));
  options->threads = static_cast<int>(threads);
  PP_RETURN_IF_ERROR(OneOf("--backend", a.backend, {"cpu", "cuda"}));
  for (const auto& [value, option] :
       {std::pair{&a.gemms, "--gemms"}, std::pair{&a.tune_gemms, "--tune-gemms"}})
    if (!value->empty() && a.backend != "cuda")
      return Status::Invalid(fmt::format("{}: needs --backend cuda", option));
  PP_RETURN_IF_ERROR(OneOf("--weight-rounding", a.weight_rounding, {"nearest", "stochastic"}));
  if (a.weight_rounding == "stochastic" && a.backend != "cuda")
    return Status::Invalid("--weight-rounding: stochastic needs --backend cuda");
  if (!a.gemms.empty() && !a.tune_gemms.empty())
    return Status::Invalid(
        fmt::format("--tune-gemms: {} with --gemms {} (one of them)", a.tune_gemms, a.gemms));
  if (a.backend == "cuda" && a.compare)
    return Status::Invalid("--compare: reads the memory of --backend cpu, not cuda");
  PP_RETURN_IF_ERROR(OneOf("--transport", a.transport, {"auto", "threads", "shm", "mpi", "nccl"}));
  if (a.transport == "nccl" && a.backend != "cuda")
    return Status::Invalid(fmt::format(
        "--transport: 'nccl' with --backend {} (--backend cuda, or shm or mpi)", a.backend));
  if (a.net.empty()) return {};
  if (a.transport == "nccl")
    return Status::Invalid("--net: does not slow --transport nccl (threads, shm or mpi)");
  const Result<Network> network = ParseNetwork(a.net);
  PP_RETURN_IF_ERROR(network.status());
  options->network = *network;
  return {};
}

Status ParseOptimizer(const Arguments& a, OptimizerOptions* optimizer) {
  PP_RETURN_IF_ERROR(OneOf("--lr-schedule", a.lr_schedule, {"constant", "cosine"}));
  optimizer->cosine = a.lr_schedule == "cosine";
  PP_RETURN_IF_ERROR(ParseReal("--lr", a.lr, &optimizer->learning_rate));
  optimizer->min_learning_rate = 0.1 * optimizer->learning_rate;
  if (!a.min_lr.empty()) {
    PP_RETURN_IF_ERROR(ParseReal("--min-lr", a.min_lr, &optimizer->min_learning_rate));
    if (!optimizer->cosine) return Status::Invalid("--min-lr: needs --lr-schedule cosine");
    if (optimizer->min_learning_rate > optimizer->learning_rate)
      return Status::Invalid(
          fmt::format("--min-lr: {} with --lr {} (at most that)", a.min_lr, a.lr));
  }
  PP_RETURN_IF_ERROR(ParseReal("--weight-decay", a.weight_decay, &optimizer->weight_decay));
  if (!a.grad_clip.empty())
    PP_RETURN_IF_ERROR(ParseReal("--grad-clip", a.grad_clip, &optimizer->grad_clip));
  if (!a.loss_scale.empty()) {
    double scale = 0;
    if (!ParseReal("--loss-scale", a.loss_scale, &scale).ok() || scale < 1 || scale > 1e38)
      return Status::Invalid(
          fmt::format("--loss-scale: '{}' (a number from 1 to 1e38)", Shown(a.loss_scale)));
    optimizer->loss_scale = scale;
  }
  if (!a.loss_scale_every.empty())
    PP_RETURN_IF_ERROR(ParseWhole("--loss-scale-every", a.loss_scale_every, 1, INT32_MAX,
                                  &optimizer->loss_scale_every));
  return ParseWhole("--warmup-steps", a.warmup_steps, 0, INT32_MAX, &optimizer->warmup_steps);
}

// The options, by the groups of the help.
class Description {
 public:
  Description(CLI::App& app, Arguments& arguments) : app_(app), a_(arguments) {
    Page("--completion", "print what completes words in bash and zsh, and exit",
         [&app] { return CompletionScript(app, {}); });
    Page("--man", "print the manual page, and exit", [&app] { return ManualPage(app, "pipec"); });
    Add("PLAN", a_.plan, "", "a plan compiled by pipec")->required();
    Training();
    Optimizer();
    Evaluation();
    Checkpoints();
    Logs();
    Machine();
  }

 private:
  void Page(const char* name, const char* text, const std::function<std::string()>& print) {
    app_.add_flag_callback(
        name, [print] { throw CLI::CallForVersion(print(), 0); }, text);
  }
  // `usual`: what holds where nothing is given, if it is a value.
  CLI::Option* Add(const char* name, std::string& value, const char* type, const char* text,
                   const std::string& usual = "") {
    CLI::Option* option = app_.add_option(name, value, text)->type_name(type)->group(group_);
    const std::string& shown = value.empty() ? usual : value;
    if (!shown.empty()) option->default_str(shown);
    return option;
  }
  void Flag(const char* name, bool& value, const char* text) {
    app_.add_flag(name, value, text)->group(group_);
  }
  void File(const char* name, std::string& value, const char* text) {
    Add(name, value, "FILE", text)->transform([](const std::string& path) {
      return path == "-" ? std::string(kStandardOutput) : path;
    });
  }

  void Training() {
    group_ = "Training";
    Add("--data", a_.data, "FILE", "text, llm.c tokens or a Megatron dataset");
    Add("--steps", a_.steps, "N", "optimizer steps", "100");
    Add("--epochs", a_.epochs, "N", "instead of --steps: passes over the data");
    Add("--weights", a_.weights, "PATH",
        "safetensors to start from: a file, an index or their folder");
    Add("--seed", a_.seed, "N", "random seed of new weights and dropout", "1");
    Flag(
        "--compare", a_.compare,
        "run the same steps on one device, too, and name the first value that differs by more than "
        "rounding");
  }

  void Optimizer() {
    group_ = "Optimizer";
    Add("--lr", a_.lr, "X", "learning rate");
    Add("--lr-schedule", a_.lr_schedule, "constant|cosine",
        "of the learning rate after the warm-up");
    Add("--min-lr", a_.min_lr, "X", "final learning rate of the cosine (a tenth of --lr)");
    Add("--warmup-steps", a_.warmup_steps, "N", "steps of linear warm-up");
    Add("--weight-decay", a_.weight_decay, "X", "weight decay of matrices");
    Add("--grad-clip", a_.grad_clip, "X",
        "clip the gradient norm to this value (1; 0: no clipping, as where a plan takes no norm)");
    Add("--loss-scale", a_.loss_scale, "X", "loss scale of an fp16 plan's first step", "65536");
    Add("--loss-scale-every", a_.loss_scale_every, "N",
        "good steps in a row after which it is doubled", "2000");
  }

  void Evaluation() {
    group_ = "Evaluation";
    Add("--val-data", a_.val_data, "FILE", "data for validation losses");
    Add("--val-every", a_.val_every, "N",
        "steps from one validation to the next (after the last step)");
    Add("--val-batches", a_.val_batches, "N", "batches of a validation", "10");
    Add("--sample", a_.sample, "N",
        "tokens to generate with the trained model, after a prompt from the data");
    Add("--temperature", a_.temperature, "X",
        "temperature of the sample; 0: always the likeliest token", "1");
  }

  void Checkpoints() {
    group_ = "Checkpoints";
    Add("--save", a_.save, "FOLDER", "for checkpoints: the last two are kept");
    Add("--save-every", a_.save_every, "N",
        "steps from one checkpoint to the next (the last step alone)");
    Flag("--resume", a_.resume, "continue from the last checkpoint there");
    Flag("--new-data", a_.new_data, "with --resume: --data is not what it was");
    Add("--export", a_.export_to, "FOLDER",
        "a new one, for the trained model in Hugging Face's format");
  }

  void Logs() {
    group_ = "Logs";
    File("--log", a_.log, "write a JSON object per step");
    Add("--log-every", a_.log_every, "N",
        "print a line every so many steps, besides the first, the last and those with a "
        "validation; "
        "--log has all");
    File("--profile", a_.profile,
         "write what each kind of instruction takes, for pipec --costs (steps from the third on)");
    File("--trace", a_.trace,
         "write a Chrome trace of the first million instructions of each rank");
  }

  void Machine() {
    group_ = "Machine";
    Add("--threads", a_.threads, "N", "compute threads per rank");
    Add("--backend", a_.backend, "cpu|cuda", "where ranks compute");
    Add("--transport", a_.transport, "auto|threads|shm|mpi|nccl",
        "auto: shm under mpiexec (mpi between hosts), else threads");
    Add("--net", a_.net, "LIST",
        "slow messages down: latency=50us,bandwidth=1GB/s, or one of the two");
    Add("--stall-timeout", a_.stall_timeout, "SECONDS",
        "give up after so many without progress, and end within some ten more; 0: never");
    Add("--weight-rounding", a_.weight_rounding, "nearest|stochastic",
        "rounding of a bf16 plan's weights for products on a GPU");
    Add("--gemms", a_.gemms, "FILE",
        "algorithms for matrix products on a GPU, which --tune-gemms wrote");
    Add("--tune-gemms", a_.tune_gemms, "FILE",
        "instead of training: time the plan's matrix products on a GPU and write that file");
    Add("--cuda-experiments", a_.cuda_experiments, "LIST",
        "to measure a GPU: of reduction=none|compute (may cuBLASLt cut sums), alignment=16|64 "
        "(bytes, of its operands' rows), gelu=fused|separate, poll=MICROSECONDS (between looks at "
        "events); compute, 16, fused, 5");
  }

  CLI::App& app_;
  Arguments& a_;
  std::string group_ = "Options";
};

}  // namespace

Status ParseOptions(const Arguments& a, TrainOptions* options) {
  if (a.data.empty() && a.tune_gemms.empty())
    return Status::Invalid("--data is required (piperun --help)");
  PP_RETURN_IF_ERROR(ParseTraining(a, options));
  PP_RETURN_IF_ERROR(ParseEvaluations(a, options));
  PP_RETURN_IF_ERROR(ParseMachine(a, options));
  PP_RETURN_IF_ERROR(ParseOptimizer(a, &options->optimizer));
  // Ranks send heartbeats ten times a second: less than a second would mean nothing.
  PP_RETURN_IF_ERROR(ParseReal("--stall-timeout", a.stall_timeout, &options->stall_timeout));
  if (options->stall_timeout > 0 && options->stall_timeout < 1)
    return Status::Invalid(fmt::format("--stall-timeout: '{}' (0, or a number of seconds from 1)",
                                       Shown(a.stall_timeout)));
  options->record = !a.trace.empty() || !a.profile.empty();
  options->compare = a.compare;
  return {};
}

Result<int64_t> ParseLogEvery(const Arguments& a) {
  int64_t every = 1;
  PP_RETURN_IF_ERROR(ParseWhole("--log-every", a.log_every, 1, INT32_MAX, &every));
  return every;
}

std::vector<std::string> InputPaths(const Arguments& a) {
  std::vector<std::string> paths = {a.plan};
  if (!a.gemms.empty()) paths.push_back(a.gemms);
  for (const std::string& data : {a.data, a.val_data}) {
    const std::string stem = data.substr(0, data.find_last_of('.'));
    if (data.empty()) continue;
    paths.insert(paths.end(), {data, data + ".bin", data + ".idx", stem + ".bin", stem + ".idx"});
  }
  if (!a.weights.empty()) paths.push_back(a.weights);
  if (!a.resume) return paths;
  for (const int64_t step : SavedSteps(a.save)) paths.push_back(StepFolder(a.save, step));
  return paths;
}

std::vector<Item> DigestOptions(const TrainOptions& options) {
  const OptimizerOptions& o = options.optimizer;
  const auto item = [](const char* name, const auto& value) {
    return Item{name, std::hash<std::remove_cvref_t<decltype(value)>>()(value)};
  };
  return {item("--steps", o.steps),
          item("--epochs", options.epochs),
          item("--seed", options.seed.value_or(1)),
          item("--val-data", options.val_data.empty()),
          item("--val-every", options.val_every),
          item("--val-batches", options.val_batches.value_or(0)),
          item("--sample", options.sample),
          item("--temperature", options.temperature),
          item("--save", options.save.empty()),
          item("--save-every", options.save_every),
          item("--resume", options.resume),
          item("--new-data", options.new_data),
          item("--lr-schedule", o.cosine),
          item("--lr", o.learning_rate),
          item("--min-lr", o.min_learning_rate),
          item("--weight-decay", o.weight_decay),
          item("--grad-clip", o.grad_clip),
          item("--loss-scale", o.loss_scale.value_or(0)),
          item("--loss-scale-every", o.loss_scale_every),
          item("--warmup-steps", o.warmup_steps),
          item("--trace", options.record),
          item("--compare", options.compare),
          item("--export", options.exports),
          item("--weights", options.weights.empty())};
}

void DescribeOptions(CLI::App& app, Arguments& a) {
  app.set_version_flag("--version",
                       fmt::format("piperun {}, plans of format {}", kVersion, kPlanFormat));
  const Description description(app, a);
  app.footer(
      "Where a file is written once, - is standard output.\n\nExample, one process for all ranks, "
      "and one each:\n  piperun 1f1b.plan --data text.txt --steps 100\n"
      "  mpiexec -n 4 piperun 1f1b.plan --data text.txt --steps 100");
  // An unset variable in a script is a mistake.
  for (CLI::Option* option : app.get_options())
    if (option->get_expected_max() > 0)
      option->check([](const std::string& value) {
        return std::string(value.empty() ? "is empty (a value)" : "");
      });
}

}  // namespace pp
