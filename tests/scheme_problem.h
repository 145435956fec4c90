// A scheme's schedule as the search of fit-memory sees it.
#pragma once

#include <catch2/catch.hpp>

#include "compiler/compile.h"
#include "compiler/search/problem.h"

namespace pp::search {

struct SchemeProblem {
  Problem problem;
  Plan plan;
};

inline SchemeProblem MakeSchemeProblem(const char* scheme, Shape shape, const char* costs,
                                       double limit) {
  const auto program = BuildSchedule(scheme, shape);
  REQUIRE(program.ok());
  const CostModel model = *ParseCosts(costs, program->stages);
  SchemeProblem made{MakeProblem(*program, model, ActivationMemory(*program, model, {limit})), {}};
  made.plan = MakePlan(*program, made.problem);
  return made;
}

}  // namespace pp::search
