// What follows from the description of a command line: completion by a shell, and the manual page.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

namespace pp {

// A script for bash, and for zsh as it understands bash's: completes the program's commands, if it
// has any, their options, and their values: those that help shows, and `values` by option,
// separated by spaces.
std::string CompletionScript(const CLI::App& app, const std::map<std::string, std::string>& values);

// The options of each command as JSON, for other programs that offer them: {"COMMAND":[{"name":
// "--dtype","value":"fp32|bf16","choices":["fp32","bf16"],"default":"fp32","help":"..."}, ...]}. A
// flag has no "value"; "required", "needs" and "excludes" only stand where they say something.
std::string OptionTable(const CLI::App& app);

// The page for man(1), in its own language.
std::string ManualPage(const CLI::App& app, const std::string& see_also);

}  // namespace pp
