#include "runtime/main/stop_signals.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "schema/base/status.h"

namespace pp {
namespace {

// All that the signal handler accesses.
std::atomic<bool> first{false}, counts{false};
std::atomic<int> requests{0};
// A Ctrl-C reaches a rank from the terminal, from mpiexec, or from both: the two are counted
// separately, and the larger count is used.
std::atomic<int> from_terminal{0}, from_processes{0};
// Two so close together are one request: `timeout` signals a process, and then its whole group.
constexpr int64_t kOneRequest = 100'000'000;  // nanoseconds
std::atomic<int64_t> last_counted{-kOneRequest};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<int64_t>::is_always_lock_free);

constexpr char kStopped[] = "piperun: error: stopped before the first step\n";

void OnSignal(int signal, siginfo_t* info, void*) {
  if (!counts.load()) {
    // If all ranks get the signal, rank 0 reports it, and mpiexec ends the others when it exits.
    const timespec later{.tv_sec = 0, .tv_nsec = 500'000'000};
    if (!first.load()) nanosleep(&later, nullptr);
    if (write(STDERR_FILENO, kStopped, std::strlen(kStopped)) < 0) {
      // There is nobody to tell.
    }
    _exit(static_cast<int>(Code::kFailed));
  }
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t at = now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  int64_t last = last_counted.load();
  if (at - last < kOneRequest || !last_counted.compare_exchange_strong(last, at)) return;
  ++(info->si_code == SI_KERNEL ? from_terminal : from_processes);
  requests.store(std::max(from_terminal.load(), from_processes.load()));
  if (requests.load() < 3) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void CatchStopSignals(bool is_first) {
  first.store(is_first);
  struct sigaction action {};
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;  // a write continues after it
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    // A shell ignores SIGINT for background jobs; kill -INT must work all the same.
    if (before.sa_handler == SIG_IGN && signal == SIGHUP) continue;
    sigaction(signal, &action, nullptr);
  }
}

const std::atomic<int>* CountStopRequests() {
  counts.store(true);
  return &requests;
}

}  // namespace pp
