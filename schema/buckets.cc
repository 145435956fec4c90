#include "schema/buckets.h"

#include <algorithm>

namespace pp {

std::vector<Bucket> BucketsOf(const Program& program, int stage) {
  if (!program.job) return {Bucket{}};
  const StageLayout layout = LayoutStage(*program.job, stage);
  // Where a bucket may begin: at a tensor.
  std::vector<int64_t> begins;
  for (const Tensor& tensor : layout.tensors) begins.push_back(tensor.wgrad);
  std::sort(begins.begin(), begins.end());
  std::vector<Bucket> buckets;
  int64_t end = layout.wgrad_bytes;
  while (end > 0) {
    const int64_t most = buckets.empty() ? kFirstBucketBytes : kBucketBytes;
    const int64_t furthest = std::max<int64_t>(0, end - most);
    const auto fits = std::lower_bound(begins.begin(), begins.end(), furthest);
    const bool whole = fits != begins.end() && *fits < end;
    const int64_t begin = furthest == 0 ? 0
                          : whole       ? *fits
                                        : (furthest + kAlign - 1) / kAlign * kAlign;
    buckets.push_back({begin, end - begin});
    end = begin;
  }
  return buckets;
}

int64_t ShardedOptimizerBytes(const std::vector<Bucket>& buckets, int64_t copies) {
  int64_t bytes = 0;
  for (const Bucket& bucket : buckets) {
    const int64_t share = (bucket.bytes + copies - 1) / copies;
    bytes += 2 * ((share + kAlign - 1) / kAlign * kAlign);
  }
  return bytes;
}

}  // namespace pp
