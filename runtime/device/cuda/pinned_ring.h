// Pinned memory that copies pass through, given out in a circle: who takes first gives back first.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pp {

class PinnedRing {
 public:
  PinnedRing(std::byte* base, int64_t bytes) : base_(base), bytes_(bytes) {}

  // So many bytes in one piece, or null: not before more is given back. REQUIRES: at most half of
  // the ring.
  std::byte* Take(int64_t bytes);
  // The oldest piece that was taken.
  void GiveBack(int64_t bytes);

 private:
  // Places count on and on; a place's address is its rest by bytes_.
  int64_t Begin(int64_t from, int64_t bytes) const;

  std::byte* const base_;
  const int64_t bytes_;
  int64_t first_ = 0, end_ = 0;  // what is taken
};

}  // namespace pp
