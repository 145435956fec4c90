#include "schema/semantics/buckets.h"

#include <algorithm>
#include <map>
#include <utility>

namespace pp {
namespace {

constexpr int64_t kBlockBytes = kNormBlock * 4;

int64_t Aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int64_t EndOf(const Tensor& tensor) { return tensor.wgrad + tensor.bytes(); }

bool IsTied(const StageLayout& layout, const Tensor& tensor) {
  return layout.tied_bytes > 0 &&
         (tensor.wgrad == layout.tied_lookup || tensor.wgrad == layout.tied_head);
}

// Cuts [begin, end) from its end; `first` is the maximum size in bytes of the first bucket.
void CutInto(const std::vector<Tensor>& tensors, int64_t first, bool tied,
             std::vector<Bucket>* buckets) {
  if (tensors.empty()) return;
  int64_t most = first, end = EndOf(tensors.back());
  for (auto tensor = tensors.rbegin(); tensor != tensors.rend();) {
    // The first tensor that fits, or, if none does, the first block of the last one.
    int64_t begin = end;
    for (; tensor != tensors.rend() && tensor->wgrad >= end - most; ++tensor) begin = tensor->wgrad;
    if (begin == end) {
      const int64_t furthest = std::max<int64_t>(0, end - most - tensor->wgrad);
      begin = tensor->wgrad + (furthest + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    }
    buckets->push_back({begin, end - begin, tied});
    end = begin;
    most = kBucketBytes;
  }
}

// Calls each(begin, bytes) for the pieces of `bucket` between its cuts.
template <typename Each>
void ForPieces(const StageLayout& layout, const Bucket& bucket, Each each) {
  const int64_t bucket_end = bucket.begin + bucket.bytes;
  int64_t begin = bucket.begin;
  auto cut = [&](int64_t at) {
    if (at > begin) each(begin, at - begin), begin = at;
  };
  for (const Tensor& tensor : layout.tensors) {
    if (!tensor.trainable()) continue;
    if (EndOf(tensor) <= bucket.begin || tensor.wgrad >= bucket_end) continue;
    const int64_t skipped = std::max<int64_t>(0, bucket.begin - tensor.wgrad) / kBlockBytes;
    for (int64_t at = tensor.wgrad + skipped * kBlockBytes;
         at < std::min(EndOf(tensor), bucket_end); at += kBlockBytes)
      cut(at);
  }
  cut(bucket_end);
}

// A piece belongs to the copy whose equal share contains its middle.
int64_t OwnerOf(const Bucket& bucket, int64_t copies, int64_t begin, int64_t bytes) {
  return (2 * (begin - bucket.begin) + bytes) * copies / (2 * bucket.bytes);
}

// Calls each(copy, bytes) for all shards of `bucket` that are not empty.
template <typename Each>
void ForShards(const StageLayout& layout, const Bucket& bucket, int64_t copies, Each each) {
  int64_t owner = 0, sum = 0;
  ForPieces(layout, bucket, [&](int64_t begin, int64_t bytes) {
    const int64_t next = OwnerOf(bucket, copies, begin, bytes);
    if (next != owner && sum > 0) each(owner, std::exchange(sum, 0));
    owner = next;
    sum += bytes;
  });
  if (sum > 0) each(owner, sum);
}

}  // namespace

std::vector<Bucket> BucketsOf(const Program& program, int stage) {
  if (program.job) return BucketsOf(LayoutStage(*program.job, stage));
  return program.IsTied(stage) ? std::vector{Bucket{}, Bucket{.tied = true}}
                               : std::vector{Bucket{}};
}

std::vector<Bucket> BucketsOf(const StageLayout& layout) {
  std::vector<Tensor> tied, others;
  for (const Tensor& tensor : layout.tensors)
    if (tensor.trainable()) (IsTied(layout, tensor) ? tied : others).push_back(tensor);
  std::vector<Bucket> buckets;
  CutInto(others, kFirstBucketBytes, false, &buckets);
  CutInto(tied, kBucketBytes, true, &buckets);
  return buckets;
}

int CountReduced(const std::vector<Bucket>& buckets) {
  return static_cast<int>(
      std::count_if(buckets.begin(), buckets.end(), [](const Bucket& b) { return !b.tied; }));
}

Bucket ShardOf(const StageLayout& layout, const Bucket& bucket, int64_t copies, int64_t copy) {
  Bucket shard{bucket.begin, 0, bucket.tied};
  ForShards(layout, bucket, copies, [&](int64_t owner, int64_t bytes) {
    if (owner < copy) shard.begin += bytes;
    if (owner == copy) shard.bytes = bytes;
  });
  return shard;
}

OptimizerShards OptimizerShardsOf(const StageLayout& layout, const std::vector<Bucket>& buckets,
                                  int64_t copies, int64_t copy) {
  OptimizerShards out;
  for (const Bucket& bucket : buckets) {
    out.shards.push_back(ShardOf(layout, bucket, copies, copy));
    out.offsets.push_back(out.v);
    out.v += Aligned(out.shards.back().bytes);
  }
  out.bytes = 2 * out.v;
  return out;
}

std::vector<TensorPart> PartsIn(const StageLayout& layout, const Bucket& range) {
  std::vector<TensorPart> parts;
  for (const Tensor& tensor : layout.tensors) {
    if (!tensor.trainable()) continue;
    const int64_t begin = std::max(tensor.wgrad, range.begin);
    const int64_t end = std::min(EndOf(tensor), range.begin + range.bytes);
    if (begin < end) parts.push_back({&tensor, (begin - tensor.wgrad) / 4, (end - begin) / 4});
  }
  return parts;
}

int64_t MostOptimizerBytes(const Program& program, const StageLayout& layout, int pipe) {
  const auto pipes = static_cast<int64_t>(program.pipes.size());
  std::map<int64_t, int64_t> bytes_of;  // by copy; there may be many more copies than pieces
  int64_t most = 0;
  for (const Bucket& bucket : BucketsOf(layout))
    ForShards(layout, bucket, program.Copies(), [&](int64_t copy, int64_t bytes) {
      if (copy % pipes == pipe) most = std::max(most, bytes_of[copy] += 2 * Aligned(bytes));
    });
  return most;
}

int64_t LargestShard(const Program& program, const StageLayout& layout) {
  int64_t largest = 0;
  for (const Bucket& bucket : BucketsOf(layout))
    if (!bucket.tied)
      ForShards(layout, bucket, program.Copies(),
                [&](int64_t, int64_t bytes) { largest = std::max(largest, bytes); });
  return largest;
}

}  // namespace pp
