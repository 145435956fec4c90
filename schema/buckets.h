// Buckets: the pieces in which a stage's weight gradients are reduced over its copies (Li et
// al., 2020, "PyTorch Distributed", section 3.2.3).
//
// Gradients become ready from the end of the stage to its beginning, so buckets are cut from the
// end. The first is small, so that the reduction starts early; a tensor stays whole unless it is
// larger than a bucket.
//
//   wgrad(s) of 60 MiB   | b3 9 MiB | b2 25 MiB | b1 25 MiB | b0 1 MiB |
#pragma once

#include <cstdint>
#include <vector>

#include "schema/program.h"

namespace pp {

inline constexpr int64_t kFirstBucketBytes = int64_t{1} << 20;
inline constexpr int64_t kBucketBytes = int64_t{25} << 20;

// A range of bytes in wgrad(s), and the same range in the weights that it belongs to.
struct Bucket {
  int64_t begin = 0, bytes = 0;
  bool operator==(const Bucket&) const = default;
};

// In the order in which they are reduced; together all of wgrad(s). Without a model there is one
// bucket without bytes.
std::vector<Bucket> BucketsOf(const Program& program, int stage);

// What one of `copies` ranks keeps of the optimizer's two moments under ZeRO-1: of each bucket the
// same share, rounded up to kAlign.
int64_t ShardedOptimizerBytes(const std::vector<Bucket>& buckets, int64_t copies);

}  // namespace pp
