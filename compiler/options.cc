#include "compiler/options.h"

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

}  // namespace pp::options
