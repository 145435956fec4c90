// A CUDA driver without a GPU (runtime/device/cuda/driver.h): kernels are emulated
// (kernels/block/), products are the CPU's, and what streams and events leave open happens in
// an order that a seed chooses, now and then late.
//
// What a real one would not report is an error here: memory that was not allocated, or allocated
// while a stream waits for another rank, a kernel or product that is first used, and so loaded,
// then, operands of a product whose rows are not aligned as promised, a copy from or to host memory
// that is not pinned, a stream that waits for an event that was never recorded. New memory has no
// values: all bits are set, which makes NaNs and invalid tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/device/cuda/driver.h"

namespace pp {

inline constexpr int kFakeAlgorithms = 3;

struct FakeCudaArgs {
  unsigned seed = 1;
  int64_t memory = INT64_MAX;  // bytes of the GPU
  int64_t events = INT64_MAX;  // after this many it fails: from then on nothing happens any more
  // More streams than this are an error: two of them would share a queue, where one that waits for
  // another rank holds up the other.
  int hardware_queues = 32;
  // So much work has room in a stream. More is an error where it is behind what waits: a launch
  // would wait for room, and perhaps others' launches behind it, which the stream waits for.
  size_t room = 1000;
  // How long a product takes, while nothing else takes time; empty: the host's clock counts. Called
  // for each product that is computed, on the fake's thread.
  std::function<double(const kernels::MatmulShape&, const GemmAlgorithm&)> seconds;
  // Called before it, with the operands; empty: nobody asks.
  std::function<void(const kernels::MatmulArgs&)> sees;
  // How many algorithms a product has, whose first words count from 1; it refuses others.
  int algorithms = kFakeAlgorithms;
  // The products that it refuses; empty: none.
  std::function<bool(const kernels::MatmulShape&)> refuses;
  std::string note;  // of each product that it does not refuse
  // What is left to be loaded at its first use.
  enum class Late { kNothing, kKernels, kProducts } late = Late::kNothing;
};

std::unique_ptr<CudaDriver> MakeFakeCuda(const FakeCudaArgs& args);

// `stream`, of a fake, does not continue before another rank makes the answer yes; it is polled on
// the fake's thread.
void FakeWait(CudaDriver::Stream stream, std::function<bool()> may_go_on);
// A library has made so many streams of its own on the GPU of `stream`, of a fake.
void FakeStreams(CudaDriver::Stream stream, int count);
// `stream`, of a fake, does nothing for so long; other streams go on.
void FakeDelay(CudaDriver::Stream stream, double seconds);

}  // namespace pp
