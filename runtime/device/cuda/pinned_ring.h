// Pinned memory that copies pass through, handed out in a ring: first taken, first given back.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pp {

class PinnedRing {
 public:
  PinnedRing(std::byte* base, int64_t bytes) : base_(base), bytes_(bytes) {}

  // `bytes` bytes in one piece, or null: not before more is given back. REQUIRES: at most half of
  // the ring.
  std::byte* Take(int64_t bytes);
  // The oldest piece that was taken.
  void GiveBack(int64_t bytes);

 private:
  // Places count up without end; a place's address is its remainder modulo bytes_.
  int64_t Begin(int64_t from, int64_t bytes) const;

  std::byte* const base_;
  const int64_t bytes_;
  int64_t first_ = 0, end_ = 0;  // what is taken
};

}  // namespace pp
