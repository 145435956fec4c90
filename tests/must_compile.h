// What tests of the compiler share. A plan that a test needs: if it does not compile, the test
// fails with the compiler's error.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "compiler/compile.h"
#include "compiler/scheme.h"

namespace pp {

inline Program MustCompile(const CompileOptions& options) {
  auto program = Compile(options);
  INFO(program.status().message());
  REQUIRE(program.ok());
  return std::move(*program);
}

// The schemes of two devices whose steps do not overlap.
inline std::vector<std::string> SteppingSchemes() {
  std::vector<std::string> names;
  for (const Scheme& scheme : Schemes()) {
    const auto program = BuildSchedule(std::string(scheme.name), {2, 4, 0});
    if (program.ok() && !program->overlaps) names.emplace_back(scheme.name);
  }
  return names;
}

}  // namespace pp
