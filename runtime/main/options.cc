#include "runtime/main/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <utility>

#include "runtime/files/adapter_config.h"
#include "runtime/files/checkpoint.h"
#include "runtime/files/patterns.h"
#include "runtime/files/source_files.h"
#include "runtime/files/weight_files.h"
#include "runtime/main/transports.h"
#include "runtime/run/run_options_table.h"
#include "runtime/run/settings.h"
#include "schema/base/version.h"
#include "schema/cli/pages.h"

namespace pp {
namespace {

// One of a row's type, if help shows names alone.
template <typename Owner, typename T>
std::string TypeOf(const RunOption<Owner, T>& row) {
  return row.values.names.empty() ? row.type : fmt::format("{}", fmt::join(row.values.names, "|"));
}

class Description {
 public:
  Description(CLI::App& app, Arguments& arguments) : app_(app), a_(arguments) {
    Page("--completion", "print what completes words in bash and zsh, and exit",
         [&app] { return CompletionScript(app, {}); });
    Page("--man", "print the manual page, and exit", [&app] { return ManualPage(app, "pipec"); });
    ForEachRow(kRunOptions, [this](const auto& group) {
      ForEachRow(group.rows, [&](const auto& row) { Add(row)->group(group.name); });
    });
    app.get_option("PLAN")->required();
    ForEachOption([&app](const auto& row) {
      CLI::Option* option = app.get_option(row.name);
      if (row.needs != nullptr) option->needs(app.get_option(row.needs));
      if (row.excludes != nullptr) option->excludes(app.get_option(row.excludes));
    });
  }

 private:
  void Page(const char* name, const char* text, const std::function<std::string()>& print) {
    app_.add_flag_callback(
        name, [print] { throw CLI::CallForVersion(print(), 0); }, text);
  }

  template <typename Owner, typename T>
  CLI::Option* Add(const RunOption<Owner, T>& row) {
    T* to = &(OwnerIn<Owner>(a_.train).*row.member);
    constexpr bool kMayBeNone = requires(T value) { value.has_value(); };
    if (*row.usual != '\0' && !kMayBeNone) PP_CHECK(ReadValue(row.values, row.usual, to).ok());
    CLI::Option* option = nullptr;
    if constexpr (std::is_same_v<T, bool>)
      if (row.values.names.empty()) option = app_.add_flag(row.name, *to, row.help);
    const auto take = [&row, to, &a = a_](const std::string& text) {
      a.given[row.name] = text;
      const Status status = ReadValue(row.values, text, to);
      if (a.wrong.ok()) a.wrong = status.In(row.name);
    };
    if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      const auto take_all = [take](const std::vector<std::string>& texts) {
        for (const std::string& text : texts) take(text);
      };
      option = app_.add_option_function<std::vector<std::string>>(row.name, take_all, row.help);
    } else if (option == nullptr) {
      option = app_.add_option_function<std::string>(row.name, take, row.help);
    }
    if (option->get_expected_max() > 0) option->type_name(TypeOf(row))->default_str(row.usual);
    return option;
  }

  CLI::App& app_;
  Arguments& a_;
};

// What --backend, --transport and --lr-schedule must be for others.
Status CheckTogether(const Arguments& a) {
  const TrainOptions& t = a.train;
  if (t.backend != "cuda") {
    for (const char* option : {"--gemms", "--tune-gemms", "--cuda-experiments"})
      if (a.given.contains(option))
        return Status::Invalid(fmt::format("{}: needs --backend cuda", option));
    if (t.weight_rounding == "stochastic")
      return Status::Invalid("--weight-rounding: stochastic needs --backend cuda");
    if (TransportOf(t.transport_name).nccl)
      return Status::Invalid(
          fmt::format("--transport: '{}' with --backend {} (--backend cuda, or shm or mpi)",
                      t.transport_name, t.backend));
  } else if (t.compare) {
    return Status::Invalid("--compare: reads the memory of --backend cpu, not cuda");
  }
  if (t.network && !TransportOf(t.transport_name).can_be_slowed)
    return Status::Invalid(
        fmt::format("--net: does not slow --transport {} (threads, shm or mpi)", t.transport_name));
  if (t.keep_best && t.val_data.empty()) return Status::Invalid("--keep-best: needs --val-data");
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
  if (t.data.empty() && t.tune_gemms.empty())
    return Status::Invalid("--data is required (piperun --help)");
  PP_RETURN_IF_ERROR(CheckTogether(*a));
  const auto expand = [](const char* option, std::vector<std::string>* files) {
    Result<std::vector<std::string>> expanded = ExpandPatterns(*files);
    if (expanded.ok()) *files = std::move(*expanded);
    return expanded.status().In(option);
  };
  PP_RETURN_IF_ERROR(expand("--data", &t.data));
  PP_RETURN_IF_ERROR(expand("--val-data", &t.val_data));
  if (!a->given.contains("--min-lr"))
    t.optimizer.min_learning_rate = 0.1 * t.optimizer.learning_rate;
  while (t.save.size() > 1 && t.save.back() == '/') t.save.pop_back();
  t.export_merged = !t.merged_path.empty();
  if (t.export_merged) t.export_path = t.merged_path;
  t.exports = !t.export_path.empty();
  if (a->given.contains("--export-dtype") && !t.exports)
    return Status::Invalid("--export-dtype: needs --export or --export-merged");
  t.record = !t.trace.empty() || !t.profile.empty();
  return {};
}

std::vector<std::string> InputPaths(const Arguments& a) {
  const TrainOptions& t = a.train;
  std::vector<std::string> paths = {t.plan};
  if (!t.gemms.empty()) paths.push_back(t.gemms);
  for (const std::vector<std::string>* files : {&t.data, &t.val_data})
    for (const std::string& data : *files) {
      const std::string stem = data.substr(0, data.find_last_of('.'));
      paths.insert(paths.end(), {data, data + ".bin", data + ".idx", stem + ".bin", stem + ".idx"});
    }
  if (!t.weights.empty()) {
    const std::vector<std::string> files = WeightFiles::Paths(t.weights);
    paths.insert(paths.end(), files.begin(), files.end());
    const std::string folder = WeightFiles::Folder(t.weights);
    for (const std::string& name : SourceNames(folder)) paths.push_back(folder + "/" + name);
  }
  if (!t.adapter.empty())
    paths.insert(paths.end(), {AdapterPath(t.adapter), t.adapter + "/" + kAdapterConfigName});
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
