#include "compiler/command.h"

#include <fmt/format.h>

#include <iostream>

#include "schema/file.h"
#include "schema/verify.h"

namespace pp {

Status ParseNumber(const char* option, const std::string& text, int least, int* number) {
  return text.empty() ? Status() : ReadWhole(text, least, INT32_MAX, number).In(option);
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
