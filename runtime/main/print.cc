#include "runtime/main/print.h"

#include <fmt/format.h>

#include <cstdio>
#include <iostream>

namespace pp {

// Not by std::cerr, which waits for std::cout, which may wait for its reader.
void PrintError(const Status& status) {
  std::fputs(fmt::format("piperun: error: {}\n", OneLine(status.message())).c_str(), stderr);
}

Status PrintOut(const std::string& text) {
  std::cout << text << std::flush;
  return std::cout ? Status() : Status::Failed("standard output: cannot be written");
}

}  // namespace pp
