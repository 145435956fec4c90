#include "runtime/comm/bell.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "schema/base/status.h"

namespace pp {
namespace {

// Not FUTEX_PRIVATE: the sleeper may be in another process.
long Futex(BellWords* words, int operation, uint32_t value, const timespec* until) {
  return syscall(SYS_futex, &words->rings, operation, value, until, nullptr,
                 FUTEX_BITSET_MATCH_ANY);
}

timespec After(std::chrono::nanoseconds limit) {
  constexpr int64_t kSecond = 1000000000;
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  const int64_t nanoseconds = until.tv_nsec + limit.count() % kSecond;
  until.tv_sec += limit.count() / kSecond + nanoseconds / kSecond;
  until.tv_nsec = nanoseconds % kSecond;
  return until;
}

}  // namespace

void Bell::WakeAll(BellWords* words) { Futex(words, FUTEX_WAKE, INT_MAX, nullptr); }

void Bell::Sleep(uint64_t seen, std::chrono::nanoseconds limit) {
  if (rings() != seen || limit.count() <= 0) return;
  const bool forever = limit == std::chrono::nanoseconds::max();
  const timespec until = forever ? timespec{} : After(limit);
  words_->sleepers.fetch_add(1);
  // It returns immediately if `rings` is not `seen` any more, and now and then spuriously.
  while (rings() == seen) {
    const long result =
        Futex(words_, FUTEX_WAIT_BITSET, static_cast<uint32_t>(seen), forever ? nullptr : &until);
    if (result == 0 || errno == EAGAIN || errno == EINTR) continue;
    PP_CHECK(errno == ETIMEDOUT);
    break;
  }
  words_->sleepers.fetch_sub(1);
}

}  // namespace pp
