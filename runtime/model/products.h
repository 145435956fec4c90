// The matrix products of a Linear, as its kernels are asked for them.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/matmul.h"
#include "schema/model/layout.h"

namespace pp {

// Of an adapter (schema/model/lora.h), in a token's row: u = in A^T, out += u B^T; v = d_out B,
// d_in
// += v A; and the gradients of A and B, by Update. What is added is a residual at its own place.
struct AdapterProducts {
  kernels::MatmulShape down, up, back, into, weight_a[2], weight_b[2];
};

struct LinearProducts {
  bool trained = true;                             // else its weights have no gradient
  kernels::MatmulShape forward, input, weight[2];  // the gradient of the weights: by Update
  // With these epilogues a product would also carry out the next operator, or the previous one: a
  // Gelu. They are used only if the device wants them (Kernels::Fuses). kNone: there is none.
  kernels::Epilogue next = kernels::Epilogue::kNone, previous = kernels::Epilogue::kNone;
  std::vector<AdapterProducts> adapters;
};

// Of one of a stage's operators. Among peers whose outputs are added, the first one (peer 0) adds
// bias and stream.
LinearProducts ProductsOf(const Job& job, const std::vector<StageOperator>& operators, size_t index,
                          int peer);

// Of all stages and peers of a job, each once; with the epilogues that a device can ask for.
std::vector<kernels::MatmulShape> AllProducts(const Job& job);

}  // namespace pp
