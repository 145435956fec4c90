// Whether the processor cores that this process may use are enough for its compute threads.
#pragma once

#include <string>

namespace pp {

struct ComputeThreads {
  int per_rank = 1;  // --threads
  int ranks = 1;     // of this process
};

// A note for the user if there are fewer cores than threads, where --threads is the reason; else
// empty. Counts the ranks of this host that share the cores, where the launcher says so.
std::string CoresNote(const ComputeThreads& threads);

}  // namespace pp
