// What is wrong with the words of a command line before their values are looked at, each in one
// clear line: CLI11 names neither an option that is unknown nor the value that is one too many.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "schema/base/status.h"

namespace pp {

// Invalid: an option that `app` does not have, one without its value, or with a second one; more
// files than it takes. `words`: what follows the name of the program or of its command, which
// `name` is ("pipec compile").
Status CheckWords(const CLI::App& app, const std::string& name, std::vector<std::string> words);

}  // namespace pp
