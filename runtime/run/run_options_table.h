// The table of piperun's options (run_options.h).
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "runtime/run/run_options.h"
#include "schema/base/disk.h"
#include "schema/base/number.h"
#include "schema/base/status.h"
#include "schema/model/attribute.h"

namespace pp {

// Which values an option has.
struct OptionValues {
  ValueNames names = {};                // of an enum's, bool's or text's; other texts are paths
  int64_t least = 1, most = INT32_MAX;  // of a whole number
  const char* zero = nullptr;           // a word for 0, which is legal besides
  bool (*allows)(double) = nullptr;     // of a number,
  const char* right = nullptr;          // and which those are
  bool output = false;                  // a file, where - is standard output
  bool words = false;                   // a text that is no path
};
constexpr OptionValues Whole(int64_t least = 1, int64_t most = INT32_MAX,
                             const char* zero = nullptr) {
  return {.least = least, .most = most, .zero = zero};
}
constexpr OptionValues Real(bool (*allows)(double), const char* right) {
  return {.allows = allows, .right = right};
}
inline constexpr OptionValues kFromZero = Real([](double x) { return x >= 0; }, "a number from 0");
inline constexpr OptionValues kShare = Real(
    [](double x) { return x >= 0 && static_cast<float>(x) < 1; }, "a number from 0 to 0.9999999");
inline constexpr OptionValues kAboveZero =
    Real([](double x) { return static_cast<float>(x) > 0 && x <= 1; }, "a number from 1e-45 to 1");
inline constexpr OptionValues kTemperatures =
    Real([](double x) { return x == 0 || (x >= 1e-3 && x <= 1e3); },
         "0, or a number from 0.001 to 1000");

// What an option decides.
enum class Decides : uint8_t {
  kOwn,      // each rank may have its own, or what it names is compared instead
  kAgreed,   // all ranks have the same; of a path, whether it is given
  kNumbers,  // losses and weights, too, if only by rounding:
  kCosine,   // with a cosine alone,
  kCosineSteps,
  kCosineEpochs,  // which ends where the training does
};
bool DecidesNumbers(Decides decides, const RunOptions& options);

template <typename Owner, typename T>
struct RunOption {
  const char* name;
  T Owner::*member;  // of RunOptions or OptimizerOptions
  const char* type;  // what help shows for its value; nothing for a flag
  const char* help;
  OptionValues values;
  const char* usual;  // the default; empty: none, or the help says what it follows from
  Decides decides;
  const char* needs = nullptr;     // another option,
  const char* excludes = nullptr;  // and one that it cannot be given with
};
// clang 14 needs to be told.
template <typename Owner, typename T>
RunOption(const char*, T Owner::*, const char*, const char*, OptionValues, const char*, Decides,
          const char* = nullptr, const char* = nullptr) -> RunOption<Owner, T>;

// What help lists together.
template <typename Rows>
struct OptionGroup {
  const char* name;
  Rows rows;
};
template <typename Rows>
OptionGroup(const char*, Rows) -> OptionGroup<Rows>;

// Whose member it is.
template <typename Owner, typename Options>
auto& OwnerIn(Options& options) {
  if constexpr (std::is_same_v<Owner, OptimizerOptions>) {
    return options.optimizer;
  } else {
    return options;
  }
}

// What a user says. The errors name no option.
Status ReadWhole(const OptionValues& values, const std::string& text, int64_t* number);
Status ReadReal(const OptionValues& values, const std::string& text, double* number);
inline Status ReadValue(const OptionValues&, const std::string& text,
                        std::optional<Network>* network) {
  const Result<Network> read = ParseNetwork(text);
  if (read.ok()) *network = *read;
  return read.status();
}
inline Status ReadValue(const OptionValues& values, const std::string& text, std::string* out) {
  int32_t index = 0;
  if (!values.names.empty()) PP_RETURN_IF_ERROR(ReadName(text, values.names, &index));
  *out = values.output && text == "-" ? std::string(kStandardOutput) : text;
  return {};
}
// One of the values of a list.
inline Status ReadValue(const OptionValues&, const std::string& text,
                        std::vector<std::string>* out) {
  out->push_back(text);
  return {};
}
template <typename T>
Status ReadValue(const OptionValues& values, const std::string& text, T* out) {
  if constexpr (requires { typename T::value_type; }) {
    return ReadValue(values, text, &out->emplace());
  } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, bool>) {
    int32_t index = 0;
    PP_RETURN_IF_ERROR(ReadName(text, values.names, &index));
    *out = static_cast<T>(index);
  } else {
    std::conditional_t<std::is_integral_v<T>, int64_t, double> number = 0;
    if constexpr (std::is_integral_v<T>) {
      PP_RETURN_IF_ERROR(ReadWhole(values, text, &number));
    } else {
      PP_RETURN_IF_ERROR(ReadReal(values, text, &number));
    }
    *out = static_cast<T>(number);
  }
  return {};
}

inline std::string YesNo(bool yes) { return yes ? "yes" : "no"; }

// As ranks and runs compare it. Of paths only whether they are given: they may differ from rank to
// rank. What is not given is `usual`, or none.
template <typename T>
std::string TextOf(const OptionValues& values, const char* usual, const T& value) {
  if constexpr (std::is_same_v<T, std::optional<Network>>) {
    return YesNo(value.has_value());
  } else if constexpr (std::is_same_v<T, std::string>) {
    return values.names.empty() && !values.words ? YesNo(!value.empty()) : value;
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return YesNo(!value.empty());
  } else if constexpr (requires { value.has_value(); }) {
    return value ? TextOf(values, usual, *value) : *usual == '\0' ? "none" : usual;
  } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, bool>) {
    return values.names.empty() ? YesNo(value != T{})
                                : std::string(values.names[static_cast<size_t>(value)]);
  } else {
    return fmt::format("{}", value);
  }
}

namespace option_names {
inline constexpr std::string_view kUnusedWeights[] = {"refuse", "ignore"};  // as in UnusedWeights
inline constexpr std::string_view kExportDtypes[] = {NameOf(Dtype::kFp32), NameOf(Dtype::kBf16)};
inline constexpr std::string_view kLrSchedules[] = {"constant", "cosine"};
inline constexpr std::string_view kBackends[] = {"cpu", "cuda"};
inline constexpr std::string_view kTransports[] = {"auto", "threads", "shm", "mpi", "nccl"};
inline constexpr std::string_view kRoundings[] = {"nearest", "stochastic"};
}  // namespace option_names

// clang-format off
inline constexpr OptionGroup kPlanOption{"Options", std::tuple{
    RunOption{"PLAN", &RunOptions::plan, "", "a plan compiled by pipec", {}, "", Decides::kOwn},
}};

inline constexpr OptionGroup kTrainingOptions{"Training", std::tuple{
    RunOption{"--data", &RunOptions::data, "FILE",
              "texts, token files of tools/tokens or llm.c, Megatron datasets, or patterns of such; "
              "several are read as one", {}, "", Decides::kOwn},
    RunOption{"--steps", &OptimizerOptions::steps, "N",
              "optimizer steps", Whole(), "100", Decides::kCosineSteps},
    RunOption{"--epochs", &RunOptions::epochs, "N",
              "instead of --steps: passes over the data",
              Whole(), "", Decides::kCosineEpochs, nullptr, "--steps"},
    RunOption{"--shuffle", &RunOptions::shuffle, "",
              "sequences in another order in each pass over the data, which --seed decides",
              {}, "", Decides::kNumbers},
    RunOption{"--bytes", &RunOptions::bytes, "",
              "a text's bytes are tokens, though the model has more than 256 or weights of "
              "--weights", {}, "", Decides::kAgreed},
    RunOption{"--documents", &RunOptions::documents, "",
              "sequences are packed documents, which do not see one another (of a plan compiled with "
              "--documents)", {}, "", Decides::kNumbers},
    RunOption{"--end-of-text", &RunOptions::end_of_text, "ID",
              "the token that ends each document (by default the data says where each begins)",
              Whole(0), "", Decides::kNumbers, "--documents"},
    RunOption{"--weights", &RunOptions::weights, "PATH",
              "safetensors to start from: a file, an index or their folder",
              {}, "", Decides::kAgreed},
    RunOption{"--unused-weights", &RunOptions::unused_weights, "",
              "tensors there that the model does not use",
              {.names = option_names::kUnusedWeights}, "refuse", Decides::kAgreed, "--weights"},
    RunOption{"--adapter", &RunOptions::adapter, "FOLDER",
              "an adapter to start from, as peft saves it (a new one)",
              {}, "", Decides::kAgreed, nullptr, "--resume"},
    RunOption{"--seed", &RunOptions::seed, "N",
              "random seed of new weights and dropout", Whole(0, INT64_MAX), "1", Decides::kAgreed},
    RunOption{"--compare", &RunOptions::compare, "",
              "run the same steps on one device, too, and name the first value that differs by more "
              "than rounding", {}, "", Decides::kAgreed},
}};

inline constexpr OptionGroup kOptimizerOptions{"Optimizer", std::tuple{
    RunOption{"--lr", &OptimizerOptions::learning_rate, "X",
              "learning rate", kFromZero, "3e-4", Decides::kNumbers},
    RunOption{"--lr-schedule", &OptimizerOptions::cosine, "",
              "of the learning rate after the warm-up",
              {.names = option_names::kLrSchedules}, "constant", Decides::kNumbers},
    RunOption{"--min-lr", &OptimizerOptions::min_learning_rate, "X",
              "final learning rate of the cosine (a tenth of --lr)",
              kFromZero, "", Decides::kCosine},
    RunOption{"--warmup-steps", &OptimizerOptions::warmup_steps, "N",
              "steps of linear warm-up", Whole(0), "0", Decides::kNumbers},
    RunOption{"--beta1", &OptimizerOptions::beta1, "X",
              "decay rate of AdamW's first moment", kShare, "0.9", Decides::kNumbers},
    RunOption{"--beta2", &OptimizerOptions::beta2, "X",
              "decay rate of its second moment", kShare, "0.95", Decides::kNumbers},
    RunOption{"--eps", &OptimizerOptions::epsilon, "X",
              "added to the root of its second moment", kAboveZero, "1e-8", Decides::kNumbers},
    RunOption{"--weight-decay", &OptimizerOptions::weight_decay, "X",
              "weight decay of matrices", kFromZero, "0.1", Decides::kNumbers},
    RunOption{"--grad-clip", &OptimizerOptions::grad_clip, "X",
              "clip the gradient norm to this value (1; 0: no clipping, as where a plan takes no "
              "norm)", kFromZero, "", Decides::kNumbers},
    RunOption{"--loss-scale", &OptimizerOptions::loss_scale, "X",
              "loss scale of an fp16 plan's first step",
              Real([](double x) { return x >= 1 && x <= 1e38; }, "a number from 1 to 1e38"),
              "65536", Decides::kAgreed},
    RunOption{"--loss-scale-every", &OptimizerOptions::loss_scale_every, "N",
              "good steps in a row after which it is doubled", Whole(), "2000", Decides::kNumbers},
}};

inline constexpr OptionGroup kEvaluationOptions{"Evaluation", std::tuple{
    RunOption{"--val-data", &RunOptions::val_data, "FILE",
              "data for validation losses", {}, "", Decides::kAgreed},
    RunOption{"--val-every", &RunOptions::val_every, "N",
              "steps from one validation to the next (after the last step)",
              Whole(), "", Decides::kAgreed, "--val-data"},
    RunOption{"--val-batches", &RunOptions::val_batches, "N",
              "batches of a validation, from the file's first one on, or all",
              Whole(1, INT64_MAX, "all"), "10", Decides::kAgreed, "--val-data"},
    RunOption{"--sample", &RunOptions::sample, "N",
              "tokens to generate with the trained model, after a prompt from the data or --prompt",
              Whole(1, 1 << 20), "", Decides::kAgreed},
    RunOption{"--prompt", &RunOptions::prompt, "TOKENS",
              "what the sample continues: ids, or a text where --val-data, or else --data, is one",
              {.words = true}, "", Decides::kAgreed, "--sample"},
    RunOption{"--temperature", &RunOptions::temperature, "X",
              "temperature of the sample; 0: always the likeliest token",
              kTemperatures, "1", Decides::kAgreed, "--sample"},
}};

inline constexpr OptionGroup kCheckpointsOptions{"Checkpoints", std::tuple{
    RunOption{"--save", &RunOptions::save, "FOLDER", "for checkpoints", {}, "", Decides::kAgreed},
    RunOption{"--keep", &RunOptions::keep, "N",
              "the last checkpoints that stay there", Whole(2), "2", Decides::kAgreed, "--save"},
    RunOption{"--save-every", &RunOptions::save_every, "N",
              "steps from one checkpoint to the next (the last step alone)",
              Whole(), "", Decides::kAgreed, "--save"},
    RunOption{"--keep-best", &RunOptions::keep_best, "",
              "also save after each validation whose loss is the least so far, and keep that "
              "checkpoint", {}, "", Decides::kAgreed, "--save"},
    RunOption{"--resume", &RunOptions::resume, "",
              "continue from the last checkpoint there, with its weights",
              {}, "", Decides::kAgreed, "--save", "--weights"},
    RunOption{"--new-data", &RunOptions::new_data, "",
              "with --resume: --data is not what it was", {}, "", Decides::kAgreed, "--resume"},
    RunOption{"--export", &RunOptions::export_path, "FOLDER",
              "a new one, for the trained model in Hugging Face's format, or its adapter in peft's",
              {}, "", Decides::kAgreed},
    RunOption{"--export-merged", &RunOptions::merged_path, "FOLDER",
              "instead: the model with its adapter added to its weights",
              {}, "", Decides::kAgreed, nullptr, "--export"},
    RunOption{"--export-dtype", &RunOptions::export_dtype, "",
              "of its tensors",
              {.names = option_names::kExportDtypes}, "fp32", Decides::kAgreed},
}};

inline constexpr OptionGroup kLogsOptions{"Logs", std::tuple{
    RunOption{"--log", &RunOptions::log, "FILE",
              "write a JSON object per step", {.output = true}, "", Decides::kOwn},
    RunOption{"--log-every", &RunOptions::log_every, "N",
              "print a line every so many steps, besides the first, the last and those with a "
              "validation; --log has all", Whole(), "1", Decides::kOwn},
    RunOption{"--profile", &RunOptions::profile, "FILE",
              "write what each kind of instruction takes, for pipec --costs (steps from the third "
              "on)", {.output = true}, "", Decides::kAgreed},
    RunOption{"--trace", &RunOptions::trace, "FILE",
              "write a Chrome trace of the first million instructions of each rank",
              {.output = true}, "", Decides::kAgreed},
}};

inline constexpr OptionGroup kMachineOptions{"Machine", std::tuple{
    RunOption{"--threads", &RunOptions::threads, "N",
              "compute threads per rank", Whole(1, 1024), "1", Decides::kOwn},
    RunOption{"--backend", &RunOptions::backend, "",
              "where ranks compute", {.names = option_names::kBackends}, "cpu", Decides::kOwn},
    RunOption{"--transport", &RunOptions::transport_name, "",
              "auto: shm under mpiexec (mpi between hosts), else threads",
              {.names = option_names::kTransports}, "auto", Decides::kOwn},
    RunOption{"--net", &RunOptions::network, "LIST",
              "slow messages down: latency=50us,bandwidth=1GB/s, or one of the two",
              {}, "", Decides::kOwn},
    // Ranks send heartbeats ten times a second: less than a second would mean nothing.
    RunOption{"--stall-timeout", &RunOptions::stall_timeout, "SECONDS",
              "give up after so many without progress, and end within some ten more; 0: never",
              Real([](double x) { return x == 0 || x >= 1; }, "0, or a number of seconds from 1"),
              "300", Decides::kOwn},
    RunOption{"--weight-rounding", &RunOptions::weight_rounding, "",
              "rounding of a bf16 plan's weights for products on a GPU",
              {.names = option_names::kRoundings}, "nearest", Decides::kOwn},
    RunOption{"--gemms", &RunOptions::gemms, "FILE",
              "algorithms for matrix products on a GPU, which --tune-gemms wrote",
              {}, "", Decides::kOwn},
    RunOption{"--tune-gemms", &RunOptions::tune_gemms, "FILE",
              "instead of training: time the plan's matrix products on a GPU and write that file",
              {}, "", Decides::kOwn, nullptr, "--gemms"},
    RunOption{"--cuda-experiments", &RunOptions::cuda_experiments, "LIST",
              "to measure a GPU: of reduction=none|compute|any (may cuBLASLt cut sums; any: bits "
              "differ from run to run), alignment=16|64 (bytes, of its operands' rows), "
              "gelu=fused|separate, poll=MICROSECONDS (between looks at events), "
              "weights=beside|after (when their gradients are computed), spare=N (multiprocessors "
              "that products leave free); compute, 16, fused, 5, beside, and 8 with NCCL, else 0",
              {}, "", Decides::kOwn},
}};
// clang-format on

inline constexpr std::tuple kRunOptions{kPlanOption,        kTrainingOptions,    kOptimizerOptions,
                                        kEvaluationOptions, kCheckpointsOptions, kLogsOptions,
                                        kMachineOptions};

// Calls visit(row) for each option of the table, in its order.
template <typename Visit>
constexpr void ForEachOption(Visit visit) {
  ForEachRow(kRunOptions, [&](const auto& group) { ForEachRow(group.rows, visit); });
}

}  // namespace pp
