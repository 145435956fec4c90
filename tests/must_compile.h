// A plan that a test needs: if it does not compile, the test fails with the compiler's error.
#pragma once

#include <catch2/catch.hpp>
#include <utility>

#include "compiler/compile.h"

namespace pp {

inline Program MustCompile(const CompileOptions& options) {
  auto program = Compile(options);
  INFO(program.status().message());
  REQUIRE(program.ok());
  return std::move(*program);
}

}  // namespace pp
