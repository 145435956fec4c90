// The processor cores that the ranks of this process may use.
#pragma once

#include <string>

namespace pp {

struct Cores {
  int cores = 0;  // 0: the system does not say
  int ranks = 1;  // that share them: of this process, and, where the launcher says so, of its host
};
Cores CoresOf(int ranks_of_process);

// A note for the user if there are fewer cores than compute threads, where --threads is the reason;
// else empty.
std::string CoresNote(const Cores& cores, int threads_per_rank);

}  // namespace pp
