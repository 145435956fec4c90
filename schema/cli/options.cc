#include "schema/cli/options.h"

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

}  // namespace pp::options
