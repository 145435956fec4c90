#include "runtime/comm/shm_neighbour.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <utility>

namespace pp {
namespace {

int64_t ReadFrom(int process, const void* from, void* to, int64_t bytes) {
  const iovec here{to, static_cast<size_t>(bytes)};
  const iovec there{const_cast<void*>(from), static_cast<size_t>(bytes)};
  return process_vm_readv(process, &here, 1, &there, 1, 0);
}

}  // namespace

ShmNeighbour::ShmNeighbour(ShmNeighbour&& other) noexcept
    : shown_(other.shown_), id_(other.id_), watch_(std::exchange(other.watch_, -1)) {}

ShmNeighbour::~ShmNeighbour() {
  if (watch_ >= 0) close(watch_);
}

int64_t ShmNeighbour::Read(const char* from, char* to, int64_t bytes) {
  return IdIsRight() ? ReadFrom(shown_.process.load(), from, to, bytes) : -1;
}

bool ShmNeighbour::HasDied() {
  if (!IdIsRight()) return false;
  pollfd ended{.fd = watch_, .events = POLLIN, .revents = 0};
  return poll(&ended, 1, 0) > 0 && !HasLeft();
}

bool ShmNeighbour::IdIsRight() {
  const int process = shown_.process.load();
  if (id_ != Id::kUnknown || process == 0) return id_ == Id::kRight;
  // Before the proof, so that both are about the same process.
  watch_ = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  uint64_t nonce = 0;
  const bool right = ReadFrom(process, shown_.nonce_at, &nonce, sizeof nonce) == sizeof nonce &&
                     nonce == shown_.nonce;
  id_ = right ? Id::kRight : Id::kWrong;
  return right;
}

}  // namespace pp
