// The matrix products of a Linear, prepared when its stage is made.
#pragma once

#include <cstdint>

#include "runtime/device/kernels.h"
#include "schema/model/layout.h"

namespace pp {

// Ids of prepared products: [rows, in] to [rows, out], back to the gradient of the input, and to
// that of the weights, by Update.
struct LinearProducts {
  int forward = -1, input = -1, weight[2] = {-1, -1};
};

struct LinearTerms {
  int64_t rows = 0;
  Dtype dtype = Dtype::kFp32;  // of activations
  int peer = 0;                // among the tensor parallel ones
};

LinearProducts PrepareLinear(const StageOperator& placed, const LinearTerms& terms,
                             Kernels* kernels);

}  // namespace pp
