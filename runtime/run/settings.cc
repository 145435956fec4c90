#include "runtime/run/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/run/run_options_table.h"

namespace pp {
namespace {

// They decide where and when something is computed, and whose memory it takes, or, --documents, for
// what there is room; or, --lora, a checkpoint refuses to change them.
constexpr std::string_view kNoNumbers[] = {"--backend",
                                           "--layers-per-stage",
                                           "--lora",
                                           "--passes",
                                           "--costs",
                                           "--p2p",
                                           "--zero",
                                           "--tied",
                                           "--rank-order",
                                           "--documents",
                                           "--document-length",
                                           "--batch-ramp"};

// As checkpoints of before called them.
constexpr std::pair<const char*, const char*> kFormerNames[] = {
    {"dtype", "--dtype"}, {"tokens a sequence", "--seq-length"}};

template <typename Table, typename Owner>
void AddRows(const Table& table, const Owner& owner, std::vector<Setting>* settings) {
  ForEachRow(table, [&]<typename T>(const Attribute<Owner, T>& row) {
    const std::string_view name = row.option;
    std::string text = TextOf(row, owner.*row.member);
    if constexpr (std::is_same_v<T, Shapes>)
      if (text.empty()) text = "none";
    if constexpr (std::is_same_v<T, bool>)
      if (row.names.empty()) text = YesNo(owner.*row.member);
    settings->push_back(
        {std::string(name), text,
         std::find(std::begin(kNoNumbers), std::end(kNoNumbers), name) == std::end(kNoNumbers)});
  });
}

// Of all replicas: "64", or "32@0,64@1000".
std::string SequencesOfSteps(const Program& program) {
  const Job& job = *program.job;
  if (job.shapes.given()) return fmt::format("{}", program.replicas * job.shapes.sequences());
  const int64_t each = int64_t{program.replicas} * job.micro_batch_size;
  if (!program.ramp.given()) return fmt::format("{}", each * program.microbatches);
  std::string text;
  for (const auto& [microbatches, from] : program.ramp.stretches)
    text += fmt::format("{}{}@{}", text.empty() ? "" : ",", each * microbatches, from);
  return text;
}

}  // namespace

std::vector<Setting> OptionSettings(const RunOptions& options) {
  std::vector<Setting> settings;
  ForEachOption([&]<typename Owner, typename T>(const RunOption<Owner, T>& row) {
    if (row.decides == Decides::kOwn) return;
    settings.push_back({row.name,
                        TextOf(row.values, row.usual, OwnerIn<Owner>(options).*row.member),
                        DecidesNumbers(row.decides, options)});
  });
  for (const auto& [name, value] : options.kernels) settings.push_back({name, value});
  return settings;
}

std::vector<Setting> PlanSettings(const Program& program) {
  const Job& job = *program.job;
  std::vector<Setting> settings = {
      {"sequences a step", SequencesOfSteps(program)},
      {"copies of the weights in a replica", fmt::format("{}", program.pipes.size())},
      {"older versions of the weights", program.MakesVersions() ? program.scheme : "no"},
  };
  AddRows(kProgramAttributes<Program>, program, &settings);
  AddRows(kJobAttributes, job, &settings);
  return settings;
}

std::map<std::string, std::string> ModelSettings(const ModelConfig& model) {
  std::map<std::string, std::string> settings;
  const auto root = nlohmann::json::parse(ToJson(model), nullptr, /*allow_exceptions=*/false);
  PP_CHECK(root.is_object());
  for (const auto& [key, value] : root.items()) settings[key] = value.dump();
  return settings;
}

std::map<std::string, std::string> NumberSettings(const Program& program,
                                                  const RunOptions& options) {
  std::map<std::string, std::string> numbers;
  for (const auto& settings : {OptionSettings(options), PlanSettings(program)})
    for (const Setting& setting : settings)
      if (setting.decides_numbers) numbers[setting.name] = setting.text;
  return numbers;
}

std::vector<std::string> Differences(const std::map<std::string, std::string>& before,
                                     const std::map<std::string, std::string>& now,
                                     const std::string& folder) {
  std::vector<std::string> differences;
  for (const auto& [saved, was] : before) {
    std::string name = saved;
    for (const auto& [former, present] : kFormerNames)
      if (name == former) name = present;
    if (const auto is = now.find(name); is != now.end() && is->second != was)
      differences.push_back(fmt::format("{}: {} (before {}: {})", name, is->second, folder, was));
  }
  return differences;
}

}  // namespace pp
