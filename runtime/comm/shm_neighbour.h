// The process of another rank of this host, as the system shows it to this process.
//
// A process id is a number in a namespace: in containers that share /dev/shm it may be another
// process's, or this one's own. The neighbour has shown a random number and where it has it. Only
// if that is what the process with the id has there, the id is right, and its memory may be read
// and its end noticed.
#pragma once

#include <cstdint>

#include "runtime/comm/shm_segment.h"

namespace pp {

class ShmNeighbour {
 public:
  // `shown` must outlive it.
  explicit ShmNeighbour(const ShmMember* shown) : shown_(*shown) {}
  ShmNeighbour(ShmNeighbour&& other) noexcept;
  ShmNeighbour& operator=(ShmNeighbour&&) = delete;
  ~ShmNeighbour();

  // Copies what lies at `from` in its memory. Returns the number of bytes, or at most 0: this
  // process is not allowed to read there.
  int64_t Read(const char* from, char* to, int64_t bytes);

  // It took part, and then said that it would not any more.
  bool HasLeft() const { return shown_.left.load(); }
  // Its process has ended, and had not left.
  bool HasDied();

 private:
  enum class Id { kUnknown, kRight, kWrong };
  bool IdIsRight();

  const ShmMember& shown_;
  Id id_ = Id::kUnknown;
  int watch_ = -1;  // a descriptor of the process (pidfd_open(2)); -1: there is none
};

}  // namespace pp
