#include "runtime/comm/clock.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

namespace pp {

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double AwakeClock::Lap() {
  constexpr double kMost = 0.25;
  const double now = SteadySeconds();
  return std::min(now - std::exchange(last_, now), kMost);
}

double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace pp
