// The functions of CUDA's runtime that cuda_driver.cc calls, without a GPU: nothing is computed or
// copied, and what is recorded is reached. They remember on which GPUs CUDA would have made a
// context: those that cudaSetDevice names, and those that a thread uses without having named one.
#pragma once

#include <set>
#include <utility>

namespace pp {

struct FakeCudart {
  int gpus = 4;
  std::set<int> contexts;
  std::set<std::pair<int, int>> peers;  // from a GPU to one whose memory it accesses
  int multiprocessors = 132;
};

// The one that the functions are.
FakeCudart& Cudart();

}  // namespace pp
