// Buckets of real sizes, and the shards of the optimizer.
#include "schema/buckets.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace pp {
namespace {

// GPT-2 of this width on four stages. The embedding alone takes vocabulary * width * 4 bytes.
Program WithModel(int width) {
  Program program;
  program.stages = program.devices = 4;
  Job& job = program.job.emplace();
  job.model = {.vocab_size = 50257,
               .n_positions = 1024,
               .n_embd = width,
               .n_layer = 12,
               .n_head = 2,
               .n_inner = 4 * width};
  job.sequence_length = 1024;
  job.layers_per_stage.assign(4, 3);
  return program;
}

bool IsBeginOfTensor(const StageLayout& layout, int64_t at) {
  return std::any_of(layout.tensors.begin(), layout.tensors.end(),
                     [&](const Tensor& tensor) { return tensor.wgrad == at; });
}

}  // namespace

TEST_CASE("buckets cover the gradients from their end to their beginning") {
  for (int width : {8, 256, 768, 1600}) {
    const Program program = WithModel(width);
    for (int stage = 0; stage < program.stages; ++stage) {
      INFO("width " << width << " stage " << stage);
      const StageLayout layout = LayoutStage(*program.job, stage);
      const std::vector<Bucket> buckets = BucketsOf(program, stage);
      int64_t end = layout.wgrad_bytes;
      for (size_t b = 0; b < buckets.size(); ++b) {
        CHECK(buckets[b].bytes > 0);
        CHECK(buckets[b].bytes <= (b == 0 ? kFirstBucketBytes : kBucketBytes));
        CHECK(buckets[b].begin + buckets[b].bytes == end);
        CHECK(buckets[b].begin % kAlign == 0);
        end = buckets[b].begin;
      }
      CHECK(end == 0);
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
      if (IsBeginOfTensor(layout, begin)) continue;
      ++cuts;
      const auto cut =
          std::find_if(layout.tensors.begin(), layout.tensors.end(), [&](const Tensor& tensor) {
            return tensor.wgrad < begin && begin < tensor.wgrad + tensor.bytes();
          });
      INFO("stage " << stage << " bucket " << b);
      REQUIRE(cut != layout.tensors.end());
      CHECK(cut->bytes() > (b == 0 ? kFirstBucketBytes : kBucketBytes));
    }
    // The embedding (147 MiB) in the first and the last stage; at the end of any, a matrix of
    // 9 MiB, of which the first bucket takes its MiB.
    CHECK((cuts > 3) == (stage == 0 || stage == 3));
  }
}

TEST_CASE("without a model there is one bucket") {
  Program program;
  program.stages = 1;
  CHECK(BucketsOf(program, 0) == std::vector<Bucket>{Bucket{}});
}

TEST_CASE("the copies' shards of the optimizer hold all of it, twice") {
  const Program program = WithModel(256);
  const std::vector<Bucket> buckets = BucketsOf(program, 1);
  const int64_t all = LayoutStage(*program.job, 1).wgrad_bytes;
  for (int64_t copies : {1, 2, 3, 8, 1000}) {
    INFO(copies);
    const int64_t shard = ShardedOptimizerBytes(buckets, copies);
    CHECK(shard * copies >= 2 * all);
    // No more than a rounding to kAlign for each moment of each bucket.
    CHECK(shard <= 2 * all / copies + static_cast<int64_t>(buckets.size()) * 2 * (kAlign + 1));
  }
}

}  // namespace pp
