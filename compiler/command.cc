#include "compiler/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>

#include "compiler/scheme.h"
#include "schema/disk.h"
#include "schema/file.h"
#include "schema/verify.h"

namespace pp {

Status ParseNumber(const char* option, const std::string& text, int least, int* number) {
  return text.empty() ? Status() : ReadWhole(text, least, INT32_MAX, number).In(option);
}

Status ReadPrices(const Arguments& a, std::string* costs, PriceSource* prices) {
  const int given = int{!costs->empty()} + int{!a.machine.empty()} + int{!a.device_flops.empty()};
  if (given > 1) return Status::Invalid("--costs, --machine, --device-flops: more than one (one)");
  if (!a.machine.empty() || !a.device_flops.empty()) {
    auto machine = a.machine.empty() ? MachineOf(a.device_flops) : FindMachine(a.machine);
    if (!machine.ok()) return machine.status();
    prices->machine = std::move(*machine);
  }
  if (costs->empty() || costs->find('=') != costs->npos) return {};
  prices->name = std::exchange(*costs, "");
  std::error_code none;
  if (!std::filesystem::exists(prices->name, none))
    return Status::Invalid(
        fmt::format("--costs: '{}' (f=1,b=2,..., or a file that piperun --profile wrote)",
                    Shown(prices->name)));
  constexpr int64_t kMostProfileBytes = 64 << 20;
  const auto text = ReadText(prices->name, "a profile", kMostProfileBytes);
  if (!text.ok()) return text.status().In("--costs");
  auto profile = ParseProfile(*text);
  if (!profile.ok()) return profile.status().In("--costs: " + prices->name);
  prices->profile = std::move(*profile);
  return {};
}

Status OneOf(const char* option, const std::string& text,
             std::initializer_list<std::string_view> known) {
  int32_t index = 0;
  return ReadName(text, ValueNames(known.begin(), known.size()), &index).In(option);
}

Status CheckOutput(const Arguments& a) {
  for (const std::string& input :
       {a.plans.empty() ? std::string() : a.plans[0], a.model, a.costs, a.machine}) {
    std::error_code none;
    if (std::filesystem::equivalent(input, a.output, none))
      return Status::Invalid(fmt::format("-o: {} is the input (another file)", a.output));
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
