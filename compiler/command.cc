#include "compiler/command.h"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <iostream>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "compiler/cuts.h"
#include "compiler/document_lengths.h"
#include "compiler/scheme.h"
#include "schema/base/disk.h"
#include "schema/base/split.h"
#include "schema/base/text_source.h"
#include "schema/base/units.h"
#include "schema/format/file.h"
#include "schema/proof/verify.h"

namespace pp {
namespace {

// Whether --costs names profiles instead of times.
bool AreFiles(const std::string& costs) { return !costs.empty() && costs.find('=') == costs.npos; }

bool IsKnownMachine(const std::string& name) {
  return std::any_of(Machines().begin(), Machines().end(),
                     [&](const Machine& machine) { return machine.name == name; });
}

}  // namespace

Status ReadPrices(const Arguments& a, std::string* costs, PriceSource* prices) {
  if (!a.machine.empty() || !a.device_flops.empty()) {
    auto machine = a.machine.empty() ? MachineOf(a.device_flops) : FindMachine(a.machine);
    if (!machine.ok()) return machine.status();
    prices->machine = std::move(*machine);
  }
  if (!AreFiles(*costs)) return {};
  prices->names = std::exchange(*costs, "");
  for (const std::string_view part : Split(prices->names, ',')) {
    const std::string path(part);
    std::error_code none;
    if (!std::filesystem::exists(path, none))
      return Status::Invalid(fmt::format(
          "--costs: '{}' (f=1,b=2,..., or files that piperun --profile wrote)", Shown(path)));
    constexpr int64_t kMostProfileBytes = 16 << 20;
    a.progress->Doing("reading " + path);
    const auto text = ReadText(path, "a profile", kMostProfileBytes);
    if (!text.ok()) return text.status().In("--costs");
    if (HasStageCosts(*text)) {
      if (part != prices->names)
        return Status::Invalid(fmt::format(
            "--costs: {}: costs of stages among other files (that file alone)", Shown(path)));
      auto stages = ParseStageCosts(*text);
      if (!stages.ok()) return stages.status().In("--costs: " + path);
      prices->stages = std::move(*stages);
      return {};
    }
    auto profiles = ParseProfiles(*text);
    PP_RETURN_IF_ERROR(profiles.status().In("--costs: " + path));
    for (Profile& profile : *profiles) {
      if (!prices->profiles.empty())
        PP_RETURN_IF_ERROR(CheckAlike(prices->profiles.front(), profile).In("--costs: " + path));
      prices->profiles.push_back(std::move(profile));
    }
  }
  return {};
}

Status ReadLengths(const Arguments& a, Job* job) {
  constexpr int64_t kMostBytes = 64 << 20;
  if (a.lengths.empty()) return {};
  if (!job->has_model()) return Status::Invalid("--lengths: needs --model");
  const auto text = ReadText(a.lengths, "what tools/tokens --lengths writes", kMostBytes);
  PP_RETURN_IF_ERROR(text.status().In("--lengths"));
  const int length = job->sequence_length > 0 ? job->sequence_length : job->model.max_positions;
  const auto mean = MeanDocument(*text, length);
  PP_RETURN_IF_ERROR(mean.status().In("--lengths: " + a.lengths));
  job->documents = true;
  job->document_length = *mean;
  return {};
}

void NoteBareTimes(const Arguments& a, const std::string& costs) {
  std::string with_unit, bare;
  std::set<std::string_view, std::less<>> keys;
  const auto add = [&](std::string_view item, const char* why) {
    bare += fmt::format("{}{}{}", bare.empty() ? "" : ", ", item, why);
  };
  for (const std::string_view item : Split(costs, ',')) {
    const size_t equals = item.find('=');
    if (equals == item.npos) return;  // an error
    const std::string_view key = item.substr(0, equals);
    keys.insert(key);
    const auto row = std::find_if(Costs().begin(), Costs().end(),
                                  [&](const CostInfo& cost) { return cost.key == key; });
    if (row == Costs().end()) return;  // an error
    if (row->unit == Dimension::kNone || row->unit == Dimension::kBytes) continue;
    bool is_bare = false;
    for (const std::string_view word : Split(item.substr(equals + 1), ':')) {
      const auto quantity = ReadQuantity(word);
      if (!quantity) return;  // an error
      const bool has_unit = quantity->dimension != Dimension::kNone;
      if (has_unit) with_unit = item;
      is_bare |= !has_unit && quantity->value > 0;
    }
    if (is_bare) add(item, "");
  }
  if (with_unit.empty()) return;
  if (!keys.contains("f")) add("f=1", " by default");
  if (!keys.contains("b")) add("b=2", " by default");
  if (!bare.empty())
    Note(a,
         fmt::format("pipec: --costs: {}: in seconds and bytes, as {} has a unit (a unit for each)",
                     Shown(bare), Shown(with_unit)));
}

std::vector<std::string> Inputs(const Arguments& a) {
  std::vector<std::string> inputs = a.plans;
  if (!a.model.empty()) inputs.push_back(ModelConfigPath(a.model));
  // An attribute of compile and import, an option of the others.
  const auto attribute = a.attributes.find("--costs");
  for (const std::string& costs :
       {a.costs, attribute == a.attributes.end() ? std::string() : attribute->second})
    if (AreFiles(costs))
      for (const std::string_view file : Split(costs, ',')) inputs.emplace_back(file);
  if (!a.machine.empty() && !IsKnownMachine(a.machine)) inputs.push_back(a.machine);
  if (!a.trace.empty()) inputs.push_back(a.trace);
  if (!a.lengths.empty()) inputs.push_back(a.lengths);
  for (const std::string& layout : {a.layout, a.beside})
    if (IsCutsFile(layout)) inputs.push_back(layout);
  return inputs;
}

Status CheckOutput(const Arguments& a) {
  if (a.output == kStandardOutput && !a.print_after.empty())
    return Status::Invalid("--print-after: prints where the plan goes (-o with a file)");
  for (const std::string& input : Inputs(a)) {
    std::error_code none;
    if (a.output != kStandardOutput && std::filesystem::equivalent(input, a.output, none))
      return Status::Invalid(fmt::format("-o: {} is the input (another file)", Shown(a.output)));
  }
  return {};
}

std::string SchemeName(const std::string& typed) {
  std::string lower = typed;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool known = std::any_of(Schemes().begin(), Schemes().end(),
                                 [&](const Scheme& scheme) { return scheme.name == lower; });
  return known ? lower : typed;
}

void Note(const Arguments& a, const std::string& line) {
  if (!a.quiet) fmt::print(std::cerr, "{}\n", line);
}

std::string Summary(const Program& program) {
  size_t instructions = 0;
  for (const DeviceList& list : program.lists) instructions += list.body.size();
  return fmt::format("{} on {} device{}, {} micro-batch{}, {} instructions", program.scheme,
                     program.devices, program.devices == 1 ? "" : "s", program.microbatches,
                     program.microbatches == 1 ? "" : "es", instructions);
}

Status PrintOut(const std::string& text) {
  std::cout << text << std::flush;
  return std::cout ? Status() : Status::Failed("standard output: cannot be written");
}

Result<VerifiedPlan> LoadVerified(const Arguments& a, const std::string& path) {
  a.progress->Doing("reading " + path);
  auto program = Load(path);
  if (!program.ok()) return program.status();
  a.progress->Doing("verifying " + path);
  VerifiedPlan plan{std::move(*program), {}};
  PP_RETURN_IF_ERROR(Verify(plan.program, Depth::kPlan, &plan.waits_for).In(path));
  return plan;
}

}  // namespace pp
