#include "schema/status.h"

#include <catch2/catch.hpp>

TEST_CASE("a status says where it comes from") {
  const pp::Status status = pp::Status::Invalid("not a plan").In("x.plan");
  CHECK(status.message() == "x.plan: not a plan");
  CHECK(status.code() == pp::Code::kInvalid);
}
