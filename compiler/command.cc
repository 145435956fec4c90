#include "compiler/command.h"

#include <fmt/format.h>

#include <iostream>

#include "schema/file.h"
#include "schema/number.h"
#include "schema/verify.h"

namespace pp {

Status ParseNumber(const char* option, const std::string& text, int least, int* number) {
  if (text.empty()) return {};
  if (ReadNumber(text, number) && *number >= least) return {};
  return Status::Invalid(fmt::format("{}: '{}' (a whole number from {} to {})", option, Shown(text),
                                     least, INT32_MAX));
}

Status ParseNumbers(const char* option, const std::string& text, std::vector<int>* numbers) {
  for (size_t begin = 0; begin < text.size() || (begin > 0 && begin == text.size());) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (word.empty())
      return Status::Invalid(
          fmt::format("{}: '{}' (numbers separated by commas)", option, Shown(text)));
    PP_RETURN_IF_ERROR(ParseNumber(option, word, 0, &numbers->emplace_back()));
    begin = end + 1;
  }
  return {};
}

Status OneOf(const char* option, const std::string& text,
             std::initializer_list<const char*> known) {
  std::string names;
  for (const char* name : known) {
    if (text == name) return {};
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  return Status::Invalid(fmt::format("{}: '{}' ({})", option, Shown(text), names));
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
