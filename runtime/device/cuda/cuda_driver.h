// The driver that is CUDA itself: its runtime, and cuBLASLt for matrix products.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "runtime/device/cuda/driver.h"
#include "runtime/device/cuda/experiments.h"

namespace pp {

// A globally unique id for each GPU, never 0. Invalid: there is no GPU that CUDA can use; the text
// says why.
Result<std::vector<uint64_t>> FindGpus();

// Of one of them, by its index. Several drivers of one GPU share it.
std::unique_ptr<CudaDriver> MakeCudaDriver(int gpu, const CudaExperiments& experiments = {});

// The GPUs that a process computes on: they copy from each other's memory directly, where they can.
class UsedGpus {
 public:
  // Any thread.
  void Add(int gpu);

 private:
  std::mutex mutex_;
  std::set<int> used_;
};

}  // namespace pp
