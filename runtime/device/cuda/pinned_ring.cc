#include "runtime/device/cuda/pinned_ring.h"

#include "schema/base/status.h"

namespace pp {

// A piece does not wrap around the end.
int64_t PinnedRing::Begin(int64_t from, int64_t bytes) const {
  constexpr int64_t kPiece = 64;
  from = (from + kPiece - 1) / kPiece * kPiece;
  return from % bytes_ + bytes > bytes_ ? (from / bytes_ + 1) * bytes_ : from;
}

std::byte* PinnedRing::Take(int64_t bytes) {
  PP_CHECK(bytes <= bytes_ / 2);
  if (first_ == end_) first_ = end_ = 0;
  const int64_t begin = Begin(end_, bytes);
  if (begin + bytes - first_ > bytes_) return nullptr;
  end_ = begin + bytes;
  return base_ + begin % bytes_;
}

void PinnedRing::GiveBack(int64_t bytes) {
  first_ = Begin(first_, bytes) + bytes;
  PP_CHECK(first_ <= end_);
}

}  // namespace pp
