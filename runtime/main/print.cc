#include "runtime/main/print.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <string_view>

#include "runtime/comm/clock.h"
#include "runtime/files/line_writer.h"

namespace pp {

// Not by std::cerr, which waits for std::cout, which may wait for its reader.
void PrintError(const Status& status) {
  constexpr double kMostSeconds = 10;
  const std::string line = fmt::format("piperun: error: {}\n", OneLine(status.message()));
  std::string_view left = line;
  AwakeClock clock;
  double waited = 0;
  const int again = OpenAgain(STDERR_FILENO);
  WriteWhile(again >= 0 ? again : STDERR_FILENO, &left,
             [&] { return (waited += clock.Lap()) < kMostSeconds; });
  if (again >= 0) close(again);
}

Status PrintOut(const std::string& text) {
  std::cout << text << std::flush;
  return std::cout ? Status() : Status::Failed("standard output: cannot be written");
}

}  // namespace pp
