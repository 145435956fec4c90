// Buckets: the pieces in which a stage's weight gradients are reduced over its copies (Li et
// al., 2020, "PyTorch Distributed", section 3.2.3), and its weights gathered (ZeRO-1).
//
// Gradients become ready from the end of the stage to its beginning, so buckets are cut from the
// end. The first is small, so that the reduction starts early; a tensor stays whole unless it is
// larger than a bucket. A tied tensor has buckets of its own, the last ones: REDUCE_tied sums its
// gradients over both ends of the model together; no REDUCE_grad or SCATTER_grad includes any of
// it.
//
//   wgrad(s) of 60 MiB     | b3 9 MiB | b2 25 MiB | b1 25 MiB | b0 1 MiB |
//   a first stage, tied    | b2 embed | b1 25 MiB | b0 1 MiB |
//
// A bucket is cut only where a tensor or one of its norm blocks begins (kNormBlock in layout.h),
// and so is a shard, the part of a bucket that one copy sums, norms and updates: the norm has the
// same bits whichever copy sums its blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "schema/program.h"

namespace pp {

inline constexpr int64_t kFirstBucketBytes = int64_t{1} << 20;
inline constexpr int64_t kBucketBytes = int64_t{25} << 20;

// A range of bytes in wgrad(s), and the same range in the weights that are trained.
struct Bucket {
  int64_t begin = 0, bytes = 0;
  bool tied = false;  // of the tied tensor: reduced by REDUCE_tied
  bool operator==(const Bucket&) const = default;
};

// In the order in which they are reduced, the tied ones last; together they cover all tensors of
// the stage that are trained. (Where one stage is both ends, the second accumulator of the tied
// tensor is in no bucket.) Without a model there is one bucket of 0 bytes.
std::vector<Bucket> BucketsOf(const Program& program, int stage);
std::vector<Bucket> BucketsOf(const StageLayout& layout);
// The buckets that REDUCE_grad or SCATTER_grad reduces: the first ones.
int CountReduced(const std::vector<Bucket>& buckets);

// The part of `bucket` that copy number `copy` (replica * pipes + pipe) of `copies` keeps, cut at
// the start of the block nearest to its equal share. The shards of all copies cover the bucket in
// order; a shard may be empty.
Bucket ShardOf(const StageLayout& layout, const Bucket& bucket, int64_t copies, int64_t copy);

// The optimizer region of one copy under ZeRO-1: m of its shard of each bucket, in the order of the
// buckets, each at a multiple of kAlign, and then v in the same way.
struct OptimizerShards {
  std::vector<Bucket> shards;    // by bucket
  std::vector<int64_t> offsets;  // by bucket: of its shard's m; that of its v is v + offset
  int64_t v = 0;
  int64_t bytes = 0;
};
OptimizerShards OptimizerShardsOf(const StageLayout& layout, const std::vector<Bucket>& buckets,
                                  int64_t copies, int64_t copy);

// A piece of one tensor, in elements; it begins with a norm block.
struct TensorPart {
  const Tensor* tensor = nullptr;
  int64_t begin = 0, count = 0;

  // Its norm blocks, among those of the stage; none if the tensor's are counted elsewhere.
  int64_t first_block() const { return tensor->first_block + begin / kNormBlock; }
  int64_t blocks() const { return tensor->blocks == 0 ? 0 : (count + kNormBlock - 1) / kNormBlock; }
};
// The parts of tensors in a bucket or in a shard of one; `layout` must outlive the result.
std::vector<TensorPart> PartsIn(const StageLayout& layout, const Bucket& range);

// What one device of a pipe needs for OptimizerShards: the maximum over its replicas.
int64_t MostOptimizerBytes(const Program& program, const StageLayout& layout, int pipe);
// The largest shard of the buckets that are reduced, over all copies.
int64_t LargestShard(const Program& program, const StageLayout& layout);

}  // namespace pp
