#include "runtime/main/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <climits>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>

#include "runtime/files/checkpoint.h"
#include "runtime/files/source_files.h"
#include "runtime/files/weight_files.h"
#include "runtime/main/transports.h"
#include "runtime/run/settings.h"
#include "schema/base/disk.h"
#include "schema/base/number.h"
#include "schema/base/version.h"
#include "schema/cli/options.h"
#include "schema/cli/pages.h"

namespace pp {
namespace {

constexpr std::string_view kBackends[] = {"cpu", "cuda"};
constexpr std::string_view kRoundings[] = {"nearest", "stochastic"};
constexpr std::string_view kUnusedWeights[] = {"refuse", "ignore"};  // as in UnusedWeights
constexpr std::string_view kExportDtypes[] = {NameOf(Dtype::kFp32), NameOf(Dtype::kBf16)};
constexpr std::string_view kLrSchedules[] = {"constant", "cosine"};

// What takes the text of an option. Its errors do not name the option.
using Read = std::function<Status(const std::string&)>;

// A whole number.
template <typename T>
Read Whole(T* to, int64_t least = 1, int64_t most = INT32_MAX) {
  return [=](const std::string& text) -> Status {
    int64_t number = 0;
    if (!ReadNumber(text, &number) || number < least || number > most)
      return Status::Invalid(
          fmt::format("'{}' (a whole number from {} to {})", Shown(text), least, most));
    if constexpr (requires { to->emplace(number); }) {
      to->emplace(number);
    } else {
      *to = static_cast<T>(number);
    }
    return {};
  };
}

// A number that `allows` accepts; `right`: which those are.
template <typename T, typename Allows>
Read Real(T* to, const char* right, Allows allows) {
  return [=](const std::string& text) -> Status {
    double number = 0;
    if (!ReadNumber(text, &number) || !std::isfinite(number) || !allows(number))
      return Status::Invalid(fmt::format("'{}' ({})", Shown(text), right));
    *to = static_cast<T>(number);
    return {};
  };
}
Read Real(double* to) {
  return Real(to, "a number from 0", [](double number) { return number >= 0; });
}

Read Text(std::string* to) {
  return [=](const std::string& text) {
    *to = text;
    return Status();
  };
}

// The options, by the groups of the help. Defaults that follow from others are given as text.
class Description {
 public:
  Description(CLI::App& app, Arguments& arguments) : app_(app), a_(arguments), t_(arguments.train) {
    Page("--completion", "print what completes words in bash and zsh, and exit",
         [&app] { return CompletionScript(app, {}); });
    Page("--man", "print the manual page, and exit", [&app] { return ManualPage(app, "pipec"); });
    Add("PLAN", "", "a plan compiled by pipec", Text(&a_.plan))->required();
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
  CLI::Option* Add(const char* name, const char* type, const char* help, Read read,
                   const std::string& usual = "") {
    const auto take = [name, read = std::move(read), &a = a_](const std::string& text) {
      a.given[name] = text;
      const Status status = read(text);
      if (a.wrong.ok()) a.wrong = status.In(name);
      return Status();
    };
    return options::Add(&app_, name, type, help, take)->group(group_)->default_str(usual);
  }
  CLI::Option* Choice(const char* name, const char* help, ValueNames names, std::string* to) {
    const auto read = [=](const std::string& text) {
      int32_t index = 0;
      *to = text;
      return ReadName(text, names, &index);
    };
    return Add(name, fmt::format("{}", fmt::join(names, "|")).c_str(), help, read, *to);
  }
  CLI::Option* Flag(const char* name, bool* value, const char* help) {
    return app_.add_flag(name, *value, help)->group(group_);
  }
  void File(const char* name, const char* help, std::string* to) {
    Add(name, "FILE", help, [=](const std::string& path) {
      *to = path == "-" ? std::string(kStandardOutput) : path;
      return Status();
    });
  }

  void Training() {
    group_ = "Training";
    t_.optimizer.steps = 100;
    Add("--data", "FILE", "text, llm.c tokens or a Megatron dataset", Text(&t_.data));
    CLI::Option* steps = Add("--steps", "N", "optimizer steps", Whole(&t_.optimizer.steps), "100");
    Add("--epochs", "N", "instead of --steps: passes over the data", Whole(&t_.epochs))
        ->excludes(steps);
    Flag("--bytes", &t_.bytes,
         "a text's bytes are tokens, though the model has more than 256 or weights of --weights");
    weights_ =
        Add("--weights", "PATH", "safetensors to start from: a file, an index or their folder",
            Text(&t_.weights));
    Add(
        "--unused-weights", "refuse|ignore", "tensors there that the model does not use",
        [&t = t_](const std::string& text) {
          int32_t index = 0;
          const Status status = ReadName(text, kUnusedWeights, &index);
          t.unused_weights = static_cast<UnusedWeights>(index);
          return status;
        },
        "refuse")
        ->needs(weights_);
    Add("--seed", "N", "random seed of new weights and dropout", Whole(&t_.seed, 0, INT64_MAX),
        "1");
    Flag("--compare", &t_.compare,
         "run the same steps on one device, too, and name the first value that differs by more "
         "than rounding");
  }

  void Optimizer() {
    group_ = "Optimizer";
    OptimizerOptions& o = t_.optimizer;
    Add("--lr", "X", "learning rate", Real(&o.learning_rate), "3e-4");
    Add(
        "--lr-schedule", "constant|cosine", "of the learning rate after the warm-up",
        [&o](const std::string& text) {
          int32_t index = 0;
          const Status status = ReadName(text, kLrSchedules, &index);
          o.cosine = index == 1;
          return status;
        },
        "constant");
    Add("--min-lr", "X", "final learning rate of the cosine (a tenth of --lr)",
        Real(&o.min_learning_rate));
    Add("--warmup-steps", "N", "steps of linear warm-up", Whole(&o.warmup_steps, 0), "0");
    Add("--weight-decay", "X", "weight decay of matrices", Real(&o.weight_decay), "0.1");
    Add("--grad-clip", "X",
        "clip the gradient norm to this value (1; 0: no clipping, as where a plan takes no norm)",
        Real(&o.grad_clip));
    Add("--loss-scale", "X", "loss scale of an fp16 plan's first step",
        Real(&o.loss_scale, "a number from 1 to 1e38",
             [](double scale) { return scale >= 1 && scale <= 1e38; }),
        "65536");
    Add("--loss-scale-every", "N", "good steps in a row after which it is doubled",
        Whole(&o.loss_scale_every), "2000");
  }

  void Evaluation() {
    group_ = "Evaluation";
    CLI::Option* data = Add("--val-data", "FILE", "data for validation losses", Text(&t_.val_data));
    Add("--val-every", "N", "steps from one validation to the next (after the last step)",
        Whole(&t_.val_every))
        ->needs(data);
    Add(
        "--val-batches", "N", "batches of a validation, from the file's first one on, or all",
        [&t = t_](const std::string& text) {
          int64_t number = 0;
          const bool all = text == "all";
          if (!all && (!ReadNumber(text, &number) || number < 1))
            return Status::Invalid(
                fmt::format("'{}' (all, or a whole number from 1)", Shown(text)));
          t.val_batches = number;
          return Status();
        },
        "10")
        ->needs(data);
    CLI::Option* sample = Add(
        "--sample", "N", "tokens to generate with the trained model, after a prompt from the data",
        Whole(&t_.sample, 1, 1 << 20));
    Add("--temperature", "X", "temperature of the sample; 0: always the likeliest token",
        Real(&t_.temperature, "0, or a number from 0.001 to 1000",
             [](double x) { return x == 0 || (x >= 1e-3 && x <= 1e3); }),
        "1")
        ->needs(sample);
  }

  void Checkpoints() {
    group_ = "Checkpoints";
    CLI::Option* save =
        Add("--save", "FOLDER", "for checkpoints: the last two are kept", Text(&t_.save));
    Add("--save-every", "N", "steps from one checkpoint to the next (the last step alone)",
        Whole(&t_.save_every))
        ->needs(save);
    CLI::Option* resume =
        Flag("--resume", &t_.resume, "continue from the last checkpoint there, with its weights")
            ->needs(save)
            ->excludes(weights_);
    Flag("--new-data", &t_.new_data, "with --resume: --data is not what it was")->needs(resume);
    CLI::Option* exports =
        Add("--export", "FOLDER", "a new one, for the trained model in Hugging Face's format",
            Text(&t_.export_path));
    Add(
        "--export-dtype", "fp32|bf16", "of its tensors",
        [&t = t_](const std::string& text) {
          int32_t index = 0;
          const Status status = ReadName(text, kExportDtypes, &index);
          t.export_dtype = static_cast<Dtype>(index);
          return status;
        },
        "fp32")
        ->needs(exports);
  }

  void Logs() {
    group_ = "Logs";
    File("--log", "write a JSON object per step", &a_.log);
    Add("--log-every", "N",
        "print a line every so many steps, besides the first, the last and those with a "
        "validation; --log has all",
        Whole(&a_.log_every), "1");
    File("--profile",
         "write what each kind of instruction takes, for pipec --costs (steps from the third on)",
         &a_.profile);
    File("--trace", "write a Chrome trace of the first million instructions of each rank",
         &a_.trace);
  }

  void Machine() {
    group_ = "Machine";
    Add("--threads", "N", "compute threads per rank", Whole(&t_.threads, 1, 1024), "1");
    Choice("--backend", "where ranks compute", kBackends, &a_.backend);
    Choice("--transport", "auto: shm under mpiexec (mpi between hosts), else threads",
           TransportNames(), &a_.transport);
    Add("--net", "LIST", "slow messages down: latency=50us,bandwidth=1GB/s, or one of the two",
        [&t = t_](const std::string& text) {
          const Result<Network> network = ParseNetwork(text);
          if (network.ok()) t.network = *network;
          return network.status();
        });
    // Ranks send heartbeats ten times a second: less than a second would mean nothing.
    Add("--stall-timeout", "SECONDS",
        "give up after so many without progress, and end within some ten more; 0: never",
        Real(&t_.stall_timeout, "0, or a number of seconds from 1",
             [](double seconds) { return seconds == 0 || seconds >= 1; }),
        "300");
    Choice("--weight-rounding", "rounding of a bf16 plan's weights for products on a GPU",
           kRoundings, &a_.weight_rounding);
    CLI::Option* gemms =
        Add("--gemms", "FILE", "algorithms for matrix products on a GPU, which --tune-gemms wrote",
            Text(&a_.gemms));
    Add("--tune-gemms", "FILE",
        "instead of training: time the plan's matrix products on a GPU and write that file",
        Text(&a_.tune_gemms))
        ->excludes(gemms);
    Add("--cuda-experiments", "LIST",
        "to measure a GPU: of reduction=none|compute|any (may cuBLASLt cut sums; any: bits differ "
        "from run to run), alignment=16|64 (bytes, of its operands' rows), gelu=fused|separate, "
        "poll=MICROSECONDS (between looks at events), weights=beside|after (when their gradients "
        "are computed), spare=N (multiprocessors that products leave free); compute, 16, fused, 5, "
        "beside, and 8 with NCCL, else 0",
        Text(&a_.cuda_experiments));
  }

  CLI::App& app_;
  Arguments& a_;
  TrainOptions& t_;
  CLI::Option* weights_ = nullptr;
  std::string group_ = "Options";
};

// What --backend, --transport and --lr-schedule must be for others.
Status CheckTogether(const Arguments& a) {
  const TrainOptions& t = a.train;
  if (a.backend != "cuda") {
    for (const char* option : {"--gemms", "--tune-gemms", "--cuda-experiments"})
      if (a.given.contains(option))
        return Status::Invalid(fmt::format("{}: needs --backend cuda", option));
    if (a.weight_rounding == "stochastic")
      return Status::Invalid("--weight-rounding: stochastic needs --backend cuda");
    if (TransportOf(a.transport).nccl)
      return Status::Invalid(
          fmt::format("--transport: '{}' with --backend {} (--backend cuda, or shm or mpi)",
                      a.transport, a.backend));
  } else if (t.compare) {
    return Status::Invalid("--compare: reads the memory of --backend cpu, not cuda");
  }
  if (t.network && !TransportOf(a.transport).can_be_slowed)
    return Status::Invalid(
        fmt::format("--net: does not slow --transport {} (threads, shm or mpi)", a.transport));
  if (!a.given.contains("--min-lr")) return {};
  if (!t.optimizer.cosine) return Status::Invalid("--min-lr: needs --lr-schedule cosine");
  if (t.optimizer.min_learning_rate > t.optimizer.learning_rate)
    return Status::Invalid(fmt::format("--min-lr: {} with --lr {:g} (at most that)",
                                       a.given.at("--min-lr"), t.optimizer.learning_rate));
  return {};
}

}  // namespace

Status FinishOptions(Arguments* a) {
  TrainOptions& t = a->train;
  PP_RETURN_IF_ERROR(a->wrong);
  if (t.data.empty() && a->tune_gemms.empty())
    return Status::Invalid("--data is required (piperun --help)");
  PP_RETURN_IF_ERROR(CheckTogether(*a));
  if (!a->given.contains("--min-lr"))
    t.optimizer.min_learning_rate = 0.1 * t.optimizer.learning_rate;
  while (t.save.size() > 1 && t.save.back() == '/') t.save.pop_back();
  t.exports = !t.export_path.empty();
  t.record = !a->trace.empty() || !a->profile.empty();
  return {};
}

std::vector<std::string> InputPaths(const Arguments& a) {
  const TrainOptions& t = a.train;
  std::vector<std::string> paths = {a.plan};
  if (!a.gemms.empty()) paths.push_back(a.gemms);
  for (const std::string& data : {t.data, t.val_data}) {
    const std::string stem = data.substr(0, data.find_last_of('.'));
    if (data.empty()) continue;
    paths.insert(paths.end(), {data, data + ".bin", data + ".idx", stem + ".bin", stem + ".idx"});
  }
  if (!t.weights.empty()) {
    const std::vector<std::string> files = WeightFiles::Paths(t.weights);
    paths.insert(paths.end(), files.begin(), files.end());
    const std::string folder = WeightFiles::Folder(t.weights);
    for (const std::string& name : SourceNames(folder)) paths.push_back(folder + "/" + name);
  }
  if (!t.resume) return paths;
  for (const int64_t step : SavedSteps(t.save)) paths.push_back(StepFolder(t.save, step));
  return paths;
}

std::vector<Item> DigestOptions(const TrainOptions& options) {
  std::vector<Item> items;
  for (const Setting& setting : OptionSettings(options))
    items.push_back({setting.name, std::hash<std::string>()(setting.text)});
  return items;
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
