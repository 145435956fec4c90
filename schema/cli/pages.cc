#include "schema/cli/pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <vector>

#include "schema/base/split.h"
#include "schema/base/version.h"

namespace pp {
namespace {

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// The values that help shows, or the given ones; empty: anything.
std::string ValuesOf(const CLI::Option& option, const std::map<std::string, std::string>& values) {
  if (const auto given = values.find(option.get_name()); given != values.end())
    return given->second;
  std::string shown = option.get_type_name();
  if (shown.find('|') == shown.npos) return "";
  std::replace(shown.begin(), shown.end(), '|', ' ');
  return shown;
}

// The cases of the script for the options of a command, or of a program without commands.
std::string CasesOf(const CLI::App& app, const std::string& command,
                    const std::map<std::string, std::string>& values) {
  std::string cases, names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) continue;
    names += (names.empty() ? "" : " ") + option->get_name();
    if (option->get_expected_max() == 0) continue;  // a flag
    const std::string of_option = ValuesOf(*option, values);
    const std::string words = of_option.empty() ? "" : fmt::format("words='{}' ", of_option);
    for (const std::string& name : option->get_snames())
      cases += fmt::format("    {}:-{}) {};;\n", command, name, words);
    cases += fmt::format("    {}:{}) {};;\n", command, option->get_name(), words);
  }
  return cases + fmt::format("    {}:*) options='{}' ;;\n", command, names);
}

// Text in the language of man(1). Long lines do not matter to it.
std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  // A line that begins like this would be a request.
  return escaped.starts_with('.') || escaped.starts_with('\'') ? "\\&" + escaped : escaped;
}

std::string OptionEntry(const CLI::Option& option) {
  std::string names;
  if (option.get_positional()) {
    names = fmt::format("\\fI{}\\fR", Escaped(option.get_name()));
  } else {
    for (const std::string& name : option.get_snames())
      names += fmt::format("\\fB\\-{}\\fR, ", Escaped(name));
    names += fmt::format("\\fB{}\\fR", Escaped(option.get_name()));
    if (option.get_expected_max() > 0)
      names += fmt::format(" \\fI{}\\fR", Escaped(option.get_type_name()));
  }
  std::string notes = option.get_required() ? " (required)" : "";
  if (const std::string usual = option.get_default_str(); !usual.empty())
    notes += fmt::format(" (default: {})", usual);
  return fmt::format(".TP\n{}\n{}\n", names, Escaped(option.get_description() + notes));
}

std::string OptionEntries(const CLI::App& app, const std::string& group) {
  std::string entries;
  for (const CLI::Option* option : app.get_options())
    if (option->get_group() == group && option != app.get_help_ptr())
      entries += OptionEntry(*option);
  return entries;
}

// A footer as it stands.
std::string Literal(const std::string& text) {
  std::string lines;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines += Escaped(std::string_view(text).substr(begin, end - begin)) + "\n";
    begin = end + 1;
  }
  return lines.empty() ? "" : fmt::format(".PP\n.nf\n{}.fi\n", lines);
}

std::string Upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

nlohmann::ordered_json RowOf(const CLI::Option& option) {
  nlohmann::ordered_json row = {{"name", option.get_name()}};
  if (option.get_expected_max() > 0) row["value"] = option.get_type_name();
  if (const std::string type = option.get_type_name(); type.find('|') != type.npos)
    row["choices"] = Split(type, '|');
  if (const std::string usual = option.get_default_str(); !usual.empty()) row["default"] = usual;
  if (option.get_required()) row["required"] = true;
  for (const auto& [key, others] :
       {std::pair("needs", option.get_needs()), {"excludes", option.get_excludes()}}) {
    std::set<std::string> names;  // in an order of their own, not that of addresses
    for (const CLI::Option* other : others) names.insert(other->get_name());
    if (!names.empty()) row[key] = names;
  }
  row["help"] = option.get_description();
  return row;
}

}  // namespace

std::string CompletionScript(const CLI::App& app,
                             const std::map<std::string, std::string>& values) {
  const std::string& program = app.get_name();
  std::string commands = "help", cases;
  for (const CLI::App* sub : CommandsOf(app)) {
    commands += " " + sub->get_name();
    cases += CasesOf(*sub, sub->get_name(), values);
  }
  // Without commands all options are those of one without a name.
  const bool has_commands = !cases.empty();
  if (!has_commands) cases = CasesOf(app, "", values);
  return fmt::format(
      R"([[ -z ${{ZSH_VERSION-}} ]] || {{ autoload -U +X bashcompinit && bashcompinit; }}
_{0}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words= options=
{1}  case {2}:$before in
{3}  esac
  [[ $word != -* ]] || words=$options
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _{0} {0}
)",
      program, has_commands ? fmt::format("  ((COMP_CWORD > 1)) || words='{}'\n", commands) : "",
      has_commands ? "${COMP_WORDS[1]}" : "", cases);
}

std::string OptionTable(const CLI::App& app) {
  nlohmann::ordered_json table;
  for (const CLI::App* sub : CommandsOf(app)) {
    auto& rows = table[sub->get_name()] = nlohmann::json::array();
    for (const CLI::Option* option : sub->get_options())
      if (option != sub->get_help_ptr()) rows.push_back(RowOf(*option));
  }
  return table.dump() + "\n";
}

std::string ManualPage(const CLI::App& app, const std::string& see_also) {
  const std::string& program = app.get_name();
  const std::vector<const CLI::App*> commands = CommandsOf(app);
  std::string page =
      fmt::format(".TH {} 1 \"\" \"{} {}\" \"User Commands\"\n", Upper(program), program, kVersion);
  page += fmt::format(".SH NAME\n{} \\- {}\n", program, Escaped(app.get_description()));
  page += fmt::format(".SH SYNOPSIS\n\\fB{}\\fR {}\n", program,
                      commands.empty() ? "\\fIPLAN\\fR [\\fIOPTION\\fR]..."
                                       : "\\fICOMMAND\\fR [\\fIOPTION\\fR]...");
  if (!commands.empty()) page += ".SH COMMANDS\n";
  for (const CLI::App* sub : commands) {
    page +=
        fmt::format(".SS {} {}\n{}\n", program, sub->get_name(), Escaped(sub->get_description()));
    for (const std::string& group : sub->get_groups()) page += OptionEntries(*sub, group);
    page += Literal(sub->get_footer());
  }
  page += ".SH OPTIONS\n";
  for (const std::string& group : app.get_groups()) {
    if (group != "Options") page += fmt::format(".SS {}\n", Escaped(group));
    page += OptionEntries(app, group);
  }
  if (const std::string literal = Literal(app.get_footer()); !literal.empty())
    page += ".SH NOTES\n" + literal;
  page +=
      ".SH EXIT STATUS\n0 if all went well, 1 if something failed, 2 if an option or a file is "
      "wrong.\n";
  return page + fmt::format(".SH SEE ALSO\n\\fB{}\\fR(1)\n", see_also);
}

}  // namespace pp
