// Buckets of real sizes, and the shards of the optimizer.
#include "schema/semantics/buckets.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/models.h"

namespace pp {
namespace {

// GPT-2 of this width on four stages. The embedding alone takes vocabulary * width * 4 bytes.
Program WithModel(int width, int stages = 4) {
  Program program;
  program.stages = program.devices = stages;
  Job& job = program.job.emplace();
  job.model = Gpt2Model({.vocab_size = 50257,
                         .max_positions = 1024,
                         .hidden_size = width,
                         .layers = 12,
                         .heads = 2,
                         .intermediate_size = 4 * width});
  job.sequence_length = 1024;
  job.layers_per_stage.assign(stages, 12 / stages);
  return program;
}

int64_t EndOf(const Tensor& tensor) { return tensor.wgrad + tensor.bytes(); }

bool IsTied(const StageLayout& layout, const Tensor& tensor) {
  return tensor.wgrad == layout.tied_lookup || tensor.wgrad == layout.tied_head;
}

// Whether a tensor or one of its norm blocks begins there.
bool IsBeginOfBlock(const StageLayout& layout, int64_t at) {
  return std::any_of(layout.tensors.begin(), layout.tensors.end(), [&](const Tensor& tensor) {
    return tensor.wgrad <= at && at < EndOf(tensor) && (at - tensor.wgrad) % (kNormBlock * 4) == 0;
  });
}

constexpr int64_t kManyCopies[] = {1, 2, 3, 8, 1000};

}  // namespace

TEST_CASE("buckets cover the gradients from their end to their beginning, the tied ones last") {
  for (int width : {8, 256, 768, 1600})
    for (int stages : {1, 2, 4}) {
      const Program program = WithModel(width, stages);
      for (int stage = 0; stage < stages; ++stage) {
        INFO("width " << width << " stage " << stage << " of " << stages);
        const StageLayout layout = LayoutStage(*program.job, stage);
        const std::vector<Bucket> buckets = BucketsOf(program, stage);
        const int reduced = CountReduced(buckets);
        for (bool tied : {false, true}) {
          int64_t begin = -1, end = 0;
          for (const Tensor& tensor : layout.tensors)
            if (IsTied(layout, tensor) == tied) {
              if (begin < 0) begin = tensor.wgrad;
              end = EndOf(tensor);
            }
          for (int b = tied ? reduced : 0; b < (tied ? static_cast<int>(buckets.size()) : reduced);
               ++b) {
            CHECK(buckets[b].tied == tied);
            CHECK(buckets[b].bytes > 0);
            CHECK(buckets[b].bytes <= (b == 0 ? kFirstBucketBytes : kBucketBytes));
            CHECK(buckets[b].begin + buckets[b].bytes == end);
            CHECK(IsBeginOfBlock(layout, buckets[b].begin));
            end = buckets[b].begin;
          }
          CHECK(end == std::max<int64_t>(begin, 0));
        }
        const bool is_end = stage == 0 || stage == stages - 1;
        CHECK((reduced < static_cast<int>(buckets.size())) == is_end);
      }
    }
}

TEST_CASE("only a tensor that is larger than a bucket is cut") {
  const Program program = WithModel(768);
  for (int stage = 0; stage < program.stages; ++stage) {
    const StageLayout layout = LayoutStage(*program.job, stage);
    const std::vector<Bucket> buckets = BucketsOf(program, stage);
    int cuts = 0;
    for (size_t b = 0; b < buckets.size(); ++b) {
      const int64_t begin = buckets[b].begin;
      const auto cut = std::find_if(
          layout.tensors.begin(), layout.tensors.end(),
          [&](const Tensor& tensor) { return tensor.wgrad < begin && begin < EndOf(tensor); });
      if (cut == layout.tensors.end()) continue;
      ++cuts;
      INFO("stage " << stage << " bucket " << b);
      CHECK(cut->bytes() > (b == 0 ? kFirstBucketBytes : kBucketBytes));
    }
    // The embedding (147 MiB) in the first and the last stage; at the end of any stage, a matrix of
    // 9 MiB, from which the first bucket takes its MiB.
    CHECK((cuts > 3) == (stage == 0 || stage == 3));
  }
}

TEST_CASE("without a model there is one bucket") {
  Program program;
  program.stages = 1;
  CHECK(BucketsOf(program, 0) == std::vector<Bucket>{Bucket{}});
}

TEST_CASE("the shards of a bucket cover it, cut at blocks, nearly equal") {
  for (int width : {8, 256, 1600}) {
    const Program program = WithModel(width);
    for (int stage = 0; stage < program.stages; ++stage) {
      const StageLayout layout = LayoutStage(*program.job, stage);
      for (const Bucket& bucket : BucketsOf(program, stage))
        for (int64_t copies : kManyCopies) {
          INFO("width " << width << " stage " << stage << " copies " << copies);
          int64_t end = bucket.begin;
          for (int64_t copy = 0; copy < copies; ++copy) {
            const Bucket shard = ShardOf(layout, bucket, copies, copy);
            REQUIRE(shard.begin == end);
            REQUIRE(shard.tied == bucket.tied);
            if (shard.bytes > 0) REQUIRE(IsBeginOfBlock(layout, shard.begin));
            // Either end is at most half a block away from where it should be.
            REQUIRE(std::abs(shard.bytes - bucket.bytes / copies) <= kNormBlock * 4 + kAlign);
            end += shard.bytes;
          }
          CHECK(end == bucket.begin + bucket.bytes);
        }
    }
  }
}

TEST_CASE("a copy has the same shard of the tied tensor at both ends") {
  const Program program = WithModel(768);
  const StageLayout first = LayoutStage(*program.job, 0), last = LayoutStage(*program.job, 3);
  std::vector<Bucket> a = BucketsOf(program, 0), b = BucketsOf(program, 3);
  a.erase(a.begin(), a.begin() + CountReduced(a));
  b.erase(b.begin(), b.begin() + CountReduced(b));
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i)
    for (int64_t copy = 0; copy < 3; ++copy) {
      const Bucket at_first = ShardOf(first, a[i], 3, copy), at_last = ShardOf(last, b[i], 3, copy);
      CHECK(at_first.bytes == at_last.bytes);
      CHECK(at_first.begin - first.tied_lookup == at_last.begin - last.tied_head);
    }
}

TEST_CASE("the copies' shards of the optimizer hold all of it, twice") {
  Program program = WithModel(256);
  const StageLayout layout = LayoutStage(*program.job, 0);
  const std::vector<Bucket> buckets = BucketsOf(program, 0);
  int64_t all = 0;
  for (const Bucket& bucket : buckets) all += bucket.bytes;
  CHECK(all >= layout.parameters * 4);
  for (int64_t copies : kManyCopies) {
    INFO(copies);
    program.replicas = static_cast<int32_t>(copies);
    int64_t sum = 0, most = 0;
    for (int64_t copy = 0; copy < copies; ++copy) {
      const OptimizerShards mine = OptimizerShardsOf(layout, buckets, copies, copy);
      int64_t end = 0;
      for (size_t b = 0; b < buckets.size(); ++b) {
        CHECK(mine.offsets[b] % kAlign == 0);
        CHECK(mine.offsets[b] >= end);
        end = mine.offsets[b] + mine.shards[b].bytes;
        sum += mine.shards[b].bytes;
      }
      CHECK(mine.v >= end);
      CHECK(mine.bytes == 2 * mine.v);
      most = std::max(most, mine.bytes);
    }
    CHECK(sum == all);
    program.pipes.resize(1);
    CHECK(MostOptimizerBytes(program, layout, 0) == most);
  }
}

TEST_CASE("copies are numbered replica by replica") {
  int differ = 0;
  for (int width : {8, 256, 768})
    for (int32_t replicas : {1, 2, 3, 5, 8}) {
      Program program = WithModel(width);
      program.pipes.resize(2);
      program.replicas = replicas;
      for (int stage : {0, 1}) {
        const StageLayout layout = LayoutStage(*program.job, stage);
        const std::vector<Bucket> buckets = BucketsOf(program, stage);
        int64_t most[2] = {0, 0};
        for (int replica = 0; replica < replicas; ++replica)
          for (int pipe : {0, 1}) {
            const int64_t copy = replica * 2 + pipe;
            const OptimizerShards mine = OptimizerShardsOf(layout, buckets, 2 * replicas, copy);
            most[pipe] = std::max(most[pipe], mine.bytes);
          }
        for (int pipe : {0, 1}) CHECK(MostOptimizerBytes(program, layout, pipe) == most[pipe]);
        differ += most[0] != most[1];
      }
    }
  CHECK(differ > 0);
}

// GATHER_weights takes the same range of the weights as the gradients' bucket.
TEST_CASE("a tensor lies at the same place in the weights and in the gradients") {
  for (int stages : {1, 2, 4})
    for (int stage = 0; stage < stages; ++stage)
      for (const Tensor& tensor : LayoutStage(*WithModel(256, stages).job, stage).tensors)
        CHECK(tensor.weight == tensor.wgrad);
}

}  // namespace pp
