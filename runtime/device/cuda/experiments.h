// What is tried on a GPU to measure it: the default is what is believed to be the fastest.
#pragma once

#include <chrono>
#include <cstdint>

namespace pp {

// Whether cuBLASLt may cut a product's sums into parts. In order: it adds them up in fp32
// afterwards. In any order: also as they arrive, or rounded, so that bits differ from run to run.
enum class CutSums { kNever, kInOrder, kAnyOrder };

struct CudaExperiments {
  CutSums cut_sums = CutSums::kInOrder;
  // The alignment that it is promised for all rows of all operands, at most, in bytes. What lies in
  // an arena has up to kAlign (schema/model/layout.h).
  uint32_t alignment = 16;
  // Whether GELU may be part of a product.
  bool fuses_gelu = true;
  // Whether gradients of weights are computed in a stream of their own, beside the rest of their
  // layer's backward.
  bool weights_beside = true;
  // Multiprocessors that products leave to other kernels: those of NCCL, which wait for other ranks
  // while they occupy one, and would let a product of as many blocks as there are multiprocessors
  // take twice as long. -1: as many as NCCL's kernels occupy, or none where there is no NCCL.
  int32_t spare = -1;
  // How long the thread that waits for a GPU's events sleeps at least between two looks at them.
  std::chrono::microseconds poll{5};
};

// The alignment of all rows of a matrix at an aligned address, up to `most`.
inline uint32_t RowAlignment(int64_t row_bytes, uint32_t most) {
  const auto alignment = static_cast<uint64_t>(row_bytes & -row_bytes);
  return static_cast<uint32_t>(alignment < most ? alignment : most);
}

}  // namespace pp
