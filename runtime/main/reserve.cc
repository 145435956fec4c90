#include "runtime/main/reserve.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <memory>

namespace pp {
namespace {

// The largest that glibc lets stay on its heap; larger blocks go back to the system.
constexpr int64_t kBlock = 32 << 20;
// A rank's part of a checkpoint, its manifest, a folder's, a log's, and what libraries open.
constexpr int64_t kSpares = 16;

}  // namespace

void KeepFreedMemory() {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, kBlock);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

void HoldMemory(int64_t bytes) {
  std::vector<std::unique_ptr<char[]>> blocks;
  for (; bytes > 0; bytes -= kBlock / 2) {
    const int64_t size = std::min(bytes, kBlock / 2);
    blocks.emplace_back(new char[size]);
    std::memset(blocks.back().get(), 1, size);  // touched, so that it is there
  }
}

SpareDescriptors::SpareDescriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  // Where there are few, the start of the run needs them more.
  const auto quarter = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, 1024)) / 4;
  for (int64_t i = 0; i < std::min(kSpares, quarter - 8); ++i)
    if (const int spare = open("/dev/null", O_RDONLY | O_CLOEXEC); spare >= 0)
      descriptors_.push_back(spare);
}

void SpareDescriptors::Release() {
  for (const int descriptor : descriptors_) close(descriptor);
  descriptors_.clear();
}

}  // namespace pp
