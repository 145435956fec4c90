// Calls that do not return are ended, and those that do are left alone.
#include "runtime/device/cuda/call_guard.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

namespace pp {
namespace {

TEST_CASE("a call that does not return is ended, once") {
  std::atomic<int> ended{0};
  CallGuard guard(0.5, [&] { ++ended; });
  const int result = guard.Run([&] {
    while (ended.load() == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(800));  // it takes its time to end
    return 7;
  });
  CHECK(result == 7);
  CHECK(guard.late());
  CHECK(ended.load() == 1);
}

TEST_CASE("calls that return in time are not, however many they are") {
  std::atomic<int> ended{0};
  CallGuard guard(0.5, [&] { ++ended; });
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  while (std::chrono::steady_clock::now() < end)
    guard.Run([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return 0;
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(800));  // no call at all
  CHECK(ended.load() == 0);
  CHECK_FALSE(guard.late());
}

}  // namespace
}  // namespace pp
