#include "runtime/main/environment.h"

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "schema/base/number.h"

namespace pp {

std::optional<int> EnvironmentNumber(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    int number = 0;
    if (ReadNumber(text, &number)) return number;
  }
  return std::nullopt;
}

std::string ProgramFolder() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : program.parent_path().string();
}

}  // namespace pp
