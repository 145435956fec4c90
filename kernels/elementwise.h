// Fill: out = value.  Add: out += x.  Scale: out = factor * x.
#pragma once

#include <cstdint>

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

struct ScaleArgs {
  int64_t n = 0;
  const float* x = nullptr;  // [n]
  float* out = nullptr;      // [n], =; may be x
  float factor = 1;
};

namespace cpu {

void Fill(const FillArgs& args);
void Add(const AddArgs& args);
void Scale(const ScaleArgs& args);

}  // namespace cpu
}  // namespace pp::kernels
