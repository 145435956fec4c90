#include "runtime/comm/host_memory.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <new>
#include <string>
#include <tuple>
#include <utility>

namespace pp {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

// The number that follows `key` at the start of a line; `missing` if there is none.
int64_t NumberAfter(const std::string& path, const std::string& key, int64_t missing) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    int64_t number = 0;
    if (line.starts_with(key) && std::sscanf(line.c_str() + key.size(), "%ld", &number) == 1)
      return number;
  }
  return missing;
}

// What the limit of one control group leaves. The file cache is released when memory is needed.
int64_t FreeIn(const std::string& group, const char* limit_file, const char* usage_file) {
  const int64_t limit = NumberAfter(group + limit_file, "", kAny);
  if (limit == kAny) return kAny;
  const std::string stat = group + "/memory.stat";
  const int64_t cache = NumberAfter(stat, "file ", NumberAfter(stat, "total_cache ", 0));
  return limit - NumberAfter(group + usage_file, "", 0) + cache;
}

// The least that this process's control groups leave, for both versions of Linux's interface.
int64_t FreeInGroups() {
  int64_t least = kAny;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string kind = line.substr(first + 1, second - first - 1);
    if (!kind.empty() && kind != "memory") continue;
    const std::string root = kind.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (fs::path path = line.substr(second + 1);; path = path.parent_path()) {
      const std::string group = root + (path == "/" ? "" : path.string());
      least = std::min(
          least, kind.empty() ? FreeIn(group, "/memory.max", "/memory.current")
                              : FreeIn(group, "/memory.limit_in_bytes", "/memory.usage_in_bytes"));
      if (path == path.parent_path()) break;
    }
  }
  return least;
}

// The limit on this process's address space, and what it leaves; -1: there is none.
std::pair<int64_t, int64_t> AddressSpace() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {-1, 0};
  const auto bytes = static_cast<int64_t>(limit.rlim_cur);
  return {bytes, bytes - NumberAfter("/proc/self/status", "VmSize:", 0) * 1024};
}

}  // namespace

std::string LimitText() try {
  const auto [limit, left] = AddressSpace();
  if (limit < 0) return "";
  return fmt::format(
      " (the address space is limited to {} bytes, of which {} are left: a larger ulimit -v)",
      limit, left);
} catch (const std::bad_alloc&) {
  return "";
}

HostMemory ThisHost() {
  std::string name(256, 0), boot;
  gethostname(name.data(), name.size() - 1);
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  HostMemory host{.host = std::hash<std::string>()(boot + name)};
  const int64_t available = NumberAfter("/proc/meminfo", "MemAvailable:", kAny >> 11) * 1024,
                swap = NumberAfter("/proc/meminfo", "SwapFree:", 0) * 1024;
  host.free_bytes = std::min(available + swap, FreeInGroups());
  if (getrandom(&host.process, sizeof host.process, 0) < 0) host.process = getpid();
  std::tie(host.limit_bytes, host.left_bytes) = AddressSpace();
  return host;
}

namespace {

// A process whose limit on its address space leaves too little.
Status CheckLimits(std::span<const HostMemory> hosts, std::span<const int64_t> bytes) {
  std::map<uint64_t, int64_t> taken;
  for (size_t rank = 0; rank < hosts.size(); ++rank) taken[hosts[rank].process] += bytes[rank];
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const HostMemory& host = hosts[rank];
    if (host.limit_bytes < 0 || taken[host.process] <= host.left_bytes) continue;
    return Status::Invalid(fmt::format(
        "the plan takes {} bytes in rank {}'s process, whose address space is limited to {} bytes, "
        "of which {} are left (a larger ulimit -v, or pipec compile --memory-limit)",
        taken[host.process], rank, host.limit_bytes, host.left_bytes));
  }
  return {};
}

}  // namespace

Status CheckMemory(std::span<const HostMemory> hosts, std::span<const int64_t> bytes) {
  struct Host {
    int ranks = 0;
    int64_t bytes = 0, free_bytes = kAny;
  };
  std::map<uint64_t, Host> all;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    Host& host = all[hosts[rank].host];
    ++host.ranks;
    host.bytes += bytes[rank];
    host.free_bytes = std::min(host.free_bytes, hosts[rank].free_bytes);
  }
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const Host& host = all[hosts[rank].host];
    if (host.bytes <= host.free_bytes) continue;
    return Status::Invalid(fmt::format(
        "the plan takes {} bytes on the {} ranks of rank {}'s host, of which {} are free (fewer "
        "ranks a host, or pipec compile --memory-limit)",
        host.bytes, host.ranks, rank, host.free_bytes));
  }
  return CheckLimits(hosts, bytes);
}

}  // namespace pp
