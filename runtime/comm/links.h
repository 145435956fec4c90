// What a rank's transport to and from its device's memory is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/comm/transport.h"

namespace pp {

// Ports of one rank that share an NCCL communicator, and all its members, ascending.
struct RankCommunicator {
  std::vector<int> members;
  std::vector<Port> ports;
};

inline constexpr int64_t kSpareBytes = int64_t{1} << 20;

struct Links {
  Transport* inner = nullptr;                   // between the hosts; outlives what is made
  std::vector<RankCommunicator> communicators;  // empty: messages go through `inner`
  int64_t library_bytes = 0;   // that NCCL takes for them of the device's memory, some
  std::byte* spare = nullptr;  // of the arena: kSpareBytes that nobody uses before the first step
};

}  // namespace pp
