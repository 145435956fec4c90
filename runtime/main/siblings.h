// The processes that MPICH's launcher, hydra, has started on this host. Those that wait in MPI_Init
// are not told that another one has ended without joining them, and would wait for it for ever.
#pragma once

#include <functional>
#include <optional>
#include <thread>

namespace pp {

// The process of hydra that has started this one. None: there is none, or the system does not show
// it.
std::optional<int> Launcher();

// How many of them live. None: hydra has not started this process, or the system does not show it.
std::optional<int> LivingSiblings();

// Does something when fewer than `all` of them have lived for `seconds`; needs a thread.
class SiblingWatch {
 public:
  SiblingWatch(int all, double seconds, std::function<void()> alone);

 private:
  std::jthread thread_;
};

}  // namespace pp
