// A CUDA driver without a GPU (runtime/device/cuda/driver.h): kernels are emulated
// (kernels/emulation/), products are the CPU's, and what streams and events leave open happens in
// an order that a seed chooses, now and then late.
//
// What a real one would not tell is an error here: memory that nobody has taken, or taken while a
// stream waits for another rank, a copy from or to memory of the host that is not pinned, a stream
// that waits for an event that nobody has recorded. New memory has no values: all bits are set,
// which makes NaNs and tokens that there are not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/device/cuda/driver.h"

namespace pp {

struct FakeCudaArgs {
  unsigned seed = 1;
  int64_t events = INT64_MAX;  // after so many it fails: from then on nothing happens any more
  // How long a product takes, and nothing else takes time; empty: the host's clock counts. Called
  // for each product that is computed, on the fake's thread.
  std::function<double(const kernels::MatmulShape&, const GemmAlgorithm&)> seconds;
};

// Its products have kFakeAlgorithms algorithms, whose first words count from 1, and refuse others.
inline constexpr int kFakeAlgorithms = 3;
std::unique_ptr<CudaDriver> MakeFakeCuda(const FakeCudaArgs& args);

// `stream`, of a fake, does not go on before the answer is yes; it is asked again and again, on the
// fake's thread.
void FakeWait(CudaDriver::Stream stream, std::function<bool()> may_go_on);

}  // namespace pp
