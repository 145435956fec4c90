#include "compiler/options.h"

#include <algorithm>

namespace pp::options {

CLI::Option* Add(CLI::App* to, const std::string& name, const std::string& type,
                 const std::string& help, std::function<Status(const std::string&)> read) {
  const std::string shown = name.substr(name.find("--") == name.npos ? 0 : name.find("--"));
  return to
      ->add_option_function<std::string>(
          name,
          [shown, read = std::move(read)](const std::string& text) {
            if (const Status status = read(text); !status.ok()) throw Refused{status.In(shown)};
          },
          help)
      ->type_name(type);
}

CLI::Option* AddText(CLI::App* to, const std::string& name, const std::string& type,
                     const std::string& help, std::string* text) {
  return to->add_option(name, *text, help)->type_name(type);
}

CLI::Option* AddWhole(CLI::App* to, const std::string& name, const std::string& help, int32_t least,
                      int32_t* number) {
  return Add(to, name, "N", help,
             [=](const std::string& text) { return ReadWhole(text, least, INT32_MAX, number); })
      ->default_str(*number >= least ? fmt::format("{}", *number) : "");
}

CLI::Option* AddAnyAttribute(CLI::App* to, const AnyAttribute& row, std::string* text) {
  if (row.flag) return to->add_flag(row.option, *text, row.help);
  const std::string type = row.number          ? "N"
                           : row.names.empty() ? "LIST"
                                               : fmt::format("{}", fmt::join(row.names, "|"));
  CLI::Option* option = Add(to, row.option, type, row.help, [=](const std::string& given) {
    *text = given;
    return row.check(given);
  });
  if (row.usual)
    option->default_str(row.number ? fmt::format("{}", *row.usual)
                                   : std::string(row.names[static_cast<size_t>(*row.usual)]));
  return option;
}

std::string CompletionScript(const CLI::App& app,
                             const std::map<std::string, std::string>& values) {
  const std::string& program = app.get_name();
  std::string commands = "help", cases;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string& command = sub->get_name();
    commands += " " + command;
    std::string names;
    for (const CLI::Option* option : sub->get_options()) {
      if (option->get_positional()) continue;
      names += (names.empty() ? "" : " ") + option->get_name();
      if (option->get_expected_max() == 0) continue;  // a flag
      std::string of_option = option->get_type_name();
      std::replace(of_option.begin(), of_option.end(), '|', ' ');
      if (const auto more = values.find(option->get_name()); more != values.end()) {
        of_option = more->second;
      } else if (of_option.find(' ') == of_option.npos) {
        of_option.clear();
      }
      const std::string words = of_option.empty() ? "" : fmt::format("words='{}' ", of_option);
      for (const std::string& name : option->get_snames())
        cases += fmt::format("    {}:-{}) {};;\n", command, name, words);
      cases += fmt::format("    {}:{}) {};;\n", command, option->get_name(), words);
    }
    cases += fmt::format("    {}:*) options='{}' ;;\n", command, names);
  }
  return fmt::format(
      R"([[ -z ${{ZSH_VERSION-}} ]] || {{ autoload -U +X bashcompinit && bashcompinit; }}
_{0}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words= options=
  ((COMP_CWORD > 1)) || words='{1}'
  case ${{COMP_WORDS[1]}}:$before in
{2}  esac
  [[ $word != -* ]] || words=$options
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _{0} {0}
)",
      program, commands, cases);
}

}  // namespace pp::options
