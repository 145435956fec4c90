// Whether a host has the memory for all of its ranks together: each one's by itself may well be
// granted by a system that ends a process only when the memory is touched.
#pragma once

#include <cstdint>
#include <span>

#include "schema/status.h"

namespace pp {

struct HostMemory {
  uint64_t host = 0;  // the same for all processes of a host, until it starts again
  int64_t free_bytes = 0;
};

// Linux's estimate of what programs can still take, swap included, or what the memory limits of
// this process's control groups leave, where that is less.
HostMemory ThisHost();

// One entry a rank, in both. Invalid: a host whose ranks take more together than the least that
// one of them has seen free.
Status CheckMemory(std::span<const HostMemory> hosts, std::span<const int64_t> bytes);

}  // namespace pp
