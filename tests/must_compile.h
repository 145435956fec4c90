// A plan that a test needs: where it does not compile, the test fails with what the compiler says.
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
