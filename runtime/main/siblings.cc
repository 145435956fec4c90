#include "runtime/main/siblings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stop_token>
#include <string>
#include <utility>

#include "runtime/comm/clock.h"

namespace pp {
namespace {

constexpr std::chrono::milliseconds kLookTime{500};
constexpr char kLauncher[] = "(hydra_pmi_proxy)";

// The name of a process, in parentheses, and its parent; 0: there is no such process.
int ParentOf(int process, std::string* name) {
  std::ifstream stat(fmt::format("/proc/{}/stat", process));
  std::string number, state;
  int parent = 0;
  stat >> number >> *name >> state >> parent;
  return parent;
}

}  // namespace

std::optional<int> Launcher() {
  // There may be shells and other programs in between.
  int process = getppid();
  for (std::string name; process > 0;) {
    const int parent = ParentOf(process, &name);
    if (name == kLauncher) return process;
    process = parent;
  }
  return std::nullopt;
}

LauncherWatch::LauncherWatch()
    : launcher_(Launcher().value_or(0)), is_parent_(launcher_ == getppid()) {}

Status LauncherWatch::Look() const {
  if (launcher_ == 0) return {};
  const bool lives =
      is_parent_ ? getppid() == launcher_ : kill(launcher_, 0) == 0 || errno != ESRCH;
  if (lives) return {};
  return Status::Failed(fmt::format("the launcher on this host (process {}) has ended", launcher_));
}

std::optional<int> LivingSiblings() {
  const int process = Launcher().value_or(0);
  std::ifstream children(fmt::format("/proc/{}/task/{}/children", process, process));
  if (!children) return std::nullopt;
  return static_cast<int>(
      std::distance(std::istream_iterator<int>(children), std::istream_iterator<int>()));
}

SiblingWatch::SiblingWatch(int all, double seconds, Status alone,
                           std::function<void(const Status&)> end) {
  thread_ = std::jthread([=, launcher = LauncherWatch()](const std::stop_token& stop) {
    // It may have ended before this process began to look: whoever it has started is init's then.
    if (!Launcher() && getppid() == 1)
      return end(Status::Failed("the launcher on this host has ended"));
    std::mutex mutex;
    std::condition_variable_any sleep;
    double complete = SteadySeconds();
    while (true) {
      std::unique_lock<std::mutex> lock(mutex);
      sleep.wait_for(lock, stop, kLookTime, [] { return false; });
      if (stop.stop_requested()) return;
      if (const Status launched = launcher.Look(); !launched.ok()) return end(launched);
      const std::optional<int> living = LivingSiblings();
      if (!living || *living >= all) complete = SteadySeconds();
      if (SteadySeconds() - complete > seconds) return end(alone);
    }
  });
}

}  // namespace pp
