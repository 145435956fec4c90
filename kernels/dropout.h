// Dropout from a stateless counter: out = keep ? x / (1-p) : 0.
//
// Whether an element is kept depends on a hash of its position in the whole training, and on
// nothing else: not on the batch, the stage, the replica or the schedule. So a recomputed forward,
// a backward and another number of devices see the same mask, and nothing needs to be saved.
//
//   Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11)
//     key     = seed (64 bits)
//     counter = { i/4 (64 bits), sequence number (32), site (32) };  word i%4 belongs to element i
//   kept when word >= p * 2^32
//
// i counts the elements of one sequence: t*C + c for activations [T,C], and
// (head*T + query)*T + key for attention probabilities.
#pragma once

#include <cstdint>

#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels {

struct DropoutKey {
  uint64_t seed = 0;
  uint32_t site = 0;            // layer * 8 + operation; unique in the model
  uint32_t first_sequence = 0;  // index, in the whole training, of the sequence in row 0
  float p = 0;                  // 0 <= p < 1; 0 means no dropout, and the other fields are ignored
};

// Of [batch, sequence_elements], elements first .. first + n - 1. Row b is sequence
// DropoutKey::first_sequence + b.
struct MaskedRange {
  int64_t first = 0, n = 0;
  int64_t sequence_elements = 0;
};

// out = mask * x / (1-p); also its own backward, with x = dout. x, out: [range.n]; out may be x.
template <typename N>
struct DropoutArgs {
  MaskedRange range;
  const N* x = nullptr;
  N* out = nullptr;
  DropoutKey dropout;
};

namespace cpu {

template <typename N>
void Dropout(const DropoutArgs<N>& args);

}  // namespace cpu

namespace cuda {

template <typename N>
void Dropout(const DropoutArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
