// Whether a host has the memory for all of its ranks together: a system that ends a process only
// when the memory is touched may well grant each one's separately.
#pragma once

#include <cstdint>
#include <span>

#include "schema/status.h"

namespace pp {

struct HostMemory {
  uint64_t host = 0;  // the same for all processes of a host, until it reboots
  int64_t free_bytes = 0;
};

// Linux's estimate of what programs can still take, swap included, or what the memory limits of
// this process's control groups leave, where that is less.
HostMemory ThisHost();

// One entry per rank, in both. Invalid: a host whose ranks together take more than the least that
// one of them has seen free.
Status CheckMemory(std::span<const HostMemory> hosts, std::span<const int64_t> bytes);

}  // namespace pp
