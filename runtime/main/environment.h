// The process's environment: variables and paths.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

namespace pp {

// The value of the first of these variables that is a whole number.
std::optional<int> EnvironmentNumber(std::initializer_list<const char*> names);

// The folder of the program, which also has its plugins.
std::string ProgramFolder();

}  // namespace pp
