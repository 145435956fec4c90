// Whether a host has the memory for all of its ranks together: a system that ends a process only
// when the memory is touched may well grant each one's separately.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "schema/base/status.h"

namespace pp {

struct HostMemory {
  uint64_t host = 0;  // the same for all processes of a host, until it reboots
  int64_t free_bytes = 0;
  uint64_t process = 0;      // random: of the process that has asked
  int64_t limit_bytes = -1;  // its limit on its address space (RLIMIT_AS); -1: there is none
  int64_t left_bytes = 0;    // of that limit
};

// Linux's estimate of what programs can still take, swap included, or what the memory limits of
// this process's control groups leave, where that is less.
HostMemory ThisHost();

// For an error of memory that could not be had: " (the address space is limited to 100 bytes, of
// which 20 are left: a larger ulimit -v)"; empty if there is no such limit.
std::string LimitText();

// One entry per rank, in both. Invalid: a host whose ranks together take more than the least that
// one of them has seen free, or a process whose ranks together take more than its limit leaves.
Status CheckMemory(std::span<const HostMemory> hosts, std::span<const int64_t> bytes);

}  // namespace pp
