// Fill: out = value.  Add: out += x.
#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace pp::kernels {

struct FillArgs {
  int64_t n = 0;
  float* out = nullptr;  // [n], =
  float value = 0;
};

struct AddArgs {
  int64_t n = 0;
  const float* x = nullptr;  // [n]
  float* out = nullptr;      // [n], +=
};

namespace cpu {

void Fill(const FillArgs& args);
void Add(const AddArgs& args);

}  // namespace cpu

namespace cuda {

void Fill(const FillArgs& args, Stream stream);
void Add(const AddArgs& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
