#include "runtime/main/words.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string_view>

#include "schema/base/nearest.h"

namespace pp {
namespace {

std::string TakesOne(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return std::string("it takes one ") + (type == "FILE"     ? "file"
                                         : type == "FOLDER" ? "folder"
                                                            : "value");
}

Status Twice(const std::string& name, const std::string& first, const std::string& second,
             const std::string& right) {
  return Status::Invalid(
      fmt::format("{}: '{}' and '{}' ({})", name, Shown(first), Shown(second), right));
}

}  // namespace

Status CheckWords(const CLI::App& app, const std::vector<std::string>& words) {
  std::map<std::string, std::string> values;  // of options
  std::string last;                           // the option whose value came before this word
  std::string plan, before_plan;              // and before the plan
  bool options = true;                        // no -- yet
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (options && word == "--") {
      options = false;
      continue;
    }
    if (!options || !word.starts_with("--")) {
      if (options && word.size() > 1 && word[0] == '-') continue;  // -h, or none that there is
      if (!plan.empty() && !last.empty())
        return Twice(last, values[last], before_plan == last ? plan : word,
                     TakesOne(*app.get_option(last)));
      if (!plan.empty()) return Twice("PLAN", plan, word, "one plan");
      plan = word;
      before_plan = last;
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) {
      std::vector<std::string> names;
      for (const CLI::Option* other : app.get_options()) names.push_back(other->get_name());
      return Status::Invalid(
          fmt::format("unknown option '{}' ({}piperun --help)", Shown(name),
                      DidYouMean(name, std::vector<std::string_view>(names.begin(), names.end()))));
    }
    last.clear();
    if (option->get_expected_max() == 0) continue;  // a flag
    if (equals == word.npos && i + 1 == words.size())
      return Status::Invalid(fmt::format("{}: without a value ({})", name, TakesOne(*option)));
    const std::string value = equals == word.npos ? words[++i] : word.substr(equals + 1);
    if (const auto [before, is_new] = values.emplace(name, value); !is_new)
      return Twice(name, before->second, value, TakesOne(*option));
    last = name;
  }
  return {};
}

}  // namespace pp
