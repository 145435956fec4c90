// What this process finds around it.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

namespace pp {

// The first of these variables that is a whole number.
std::optional<int> EnvironmentNumber(std::initializer_list<const char*> names);

// The folder of the program, where its libraries lie.
std::string ProgramFolder();

}  // namespace pp
