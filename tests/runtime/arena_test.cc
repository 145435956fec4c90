#include "runtime/device/arena.h"

#include <catch2/catch.hpp>
#include <cstring>

namespace pp {
namespace {

TEST_CASE("the high-water mark is the end of the last number written") {
  Result<Arena> arena = Arena::Allocate(1000);
  REQUIRE(arena.ok());
  CHECK(reinterpret_cast<uintptr_t>(arena->at(0)) % 64 == 0);
  CHECK(arena->HighWater() == 0);
  const float zero = 0;
  std::memcpy(arena->at(400), &zero, sizeof zero);
  std::memcpy(arena->at(64), &zero, sizeof zero);
  CHECK(arena->HighWater() == 404);
  std::memcpy(arena->at(996), &zero, sizeof zero);
  CHECK(arena->HighWater() == 1000);
}

TEST_CASE("more than the machine has") {
  CHECK_THAT(Arena::Allocate(int64_t{1} << 60).status().message(),
             Catch::Contains("Cannot allocate memory"));
}

TEST_CASE("no bytes at all") { CHECK(Arena::Allocate(0)->HighWater() == 0); }

}  // namespace
}  // namespace pp
