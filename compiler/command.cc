#include "compiler/command.h"

#include <fmt/format.h>

#include <iostream>

#include "schema/file.h"
#include "schema/verify.h"

namespace pp {

Status ParseNumber(const char* option, const std::string& text, int least, int* number) {
  return text.empty() ? Status() : ReadWhole(text, least, INT32_MAX, number).In(option);
}

Status ReadMachine(const Arguments& a, bool costs, std::optional<Machine>* machine) {
  const int given = int{costs} + int{!a.machine.empty()} + int{!a.device_flops.empty()};
  if (given > 1) return Status::Invalid("--costs, --machine, --device-flops: more than one (one)");
  if (a.machine.empty() && a.device_flops.empty()) return {};
  auto found = a.machine.empty() ? MachineOf(a.device_flops) : FindMachine(a.machine);
  if (!found.ok()) return found.status();
  *machine = std::move(*found);
  return {};
}

Status OneOf(const char* option, const std::string& text,
             std::initializer_list<std::string_view> known) {
  int32_t index = 0;
  return ReadName(text, ValueNames(known.begin(), known.size()), &index).In(option);
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
