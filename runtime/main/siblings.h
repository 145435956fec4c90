// The processes that MPICH's launcher, hydra, has started on this host. Those that wait in MPI_Init
// are not told that another one has ended without joining them, and would wait for it for ever.
#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "schema/base/status.h"

namespace pp {

// The process of hydra that has started this one. None: there is none, or the system does not show
// it.
std::optional<int> Launcher();

// Notices that it has ended: what this process prints reaches nobody then, and nobody would end it.
class LauncherWatch {
 public:
  LauncherWatch();
  // Failed: it has ended. Takes no file.
  Status Look() const;

 private:
  const int launcher_;  // 0: there is none
  const bool is_parent_;
};

// How many of them live. None: hydra has not started this process, or the system does not show it.
std::optional<int> LivingSiblings();

// Ends a process that waits for others: when fewer than `all` of them have lived for `seconds`, or
// the launcher has ended, it calls `end` with the reason, `alone` or the launcher's. Throws
// std::system_error: there is no thread.
class SiblingWatch {
 public:
  SiblingWatch(int all, double seconds, Status alone, std::function<void(const Status&)> end);

 private:
  std::jthread thread_;
};

}  // namespace pp
