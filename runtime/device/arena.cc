#include "runtime/device/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "runtime/comm/host_memory.h"
#include "runtime/device/device.h"

namespace pp {
namespace {

// Its bytes, on a little-endian machine.
constexpr unsigned char kCanary[4] = {kUntouchedWord & 0xff, kUntouchedWord >> 8 & 0xff,
                                      kUntouchedWord >> 16 & 0xff, kUntouchedWord >> 24};

}  // namespace

void Arena::Unmap::operator()(std::byte* base) const {
  if (bytes > 0) munmap(base, bytes);
}

Result<Arena> Arena::Allocate(int64_t bytes) {
  if (bytes == 0) return Arena(nullptr, 0);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    const char* reason = std::strerror(errno);
    return Status::Invalid(
        fmt::format("the plan takes {} bytes on one rank: {}{}", bytes, reason, LimitText()));
  }
  // Fewer page faults if the system provides large pages; harmless otherwise.
  madvise(base, bytes, MADV_HUGEPAGE);
  uint32_t word = 0;
  std::memcpy(&word, kCanary, sizeof word);
  std::fill_n(static_cast<uint32_t*>(base), bytes / 4, word);
  std::memcpy(static_cast<char*>(base) + bytes / 4 * 4, kCanary, bytes % 4);
  return Arena(static_cast<std::byte*>(base), bytes);
}

// The bytes may be written concurrently, for instance by a transfer; then they differ from the
// pattern before, or after, and either answer is right.
__attribute__((no_sanitize("thread"))) int64_t Arena::HighWater() const {
  int64_t end = bytes_;
  while (end > 0 && static_cast<unsigned char>(base_[end - 1]) == kCanary[(end - 1) & 3]) --end;
  // Part of a value may look like the pattern; values have four bytes or eight.
  return std::min((end + 3) & ~int64_t{3}, bytes_);
}

}  // namespace pp
