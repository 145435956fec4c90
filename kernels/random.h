// Initial weights: out[i] = std * normal(i), independent of who makes which part of a tensor.
//
// Element i takes Philox4x32-10 with key = seed and counter = { i/4 (64 bits), tensor (32),
// 0xffffffff }, a counter that dropout never uses; words (0,1) and (2,3) become two normals each
// (Box and Muller, 1958).
#pragma once

#include <cstdint>

namespace pp::kernels {

struct RandomNormalArgs {
  float* out = nullptr;  // [n], =
  int64_t n = 0;
  int64_t first_element = 0;  // index in its tensor of out[0]
  uint64_t seed = 0;
  uint32_t tensor = 0;  // index of the tensor in the model
  float std = 0;
};

namespace cpu {

void RandomNormal(const RandomNormalArgs& args);

}  // namespace cpu
}  // namespace pp::kernels
