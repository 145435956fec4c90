// The matrix products of a Linear, as its kernels are asked for them.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/matmul.h"
#include "schema/model/layout.h"

namespace pp {

struct LinearProducts {
  kernels::MatmulShape forward, input, weight[2];  // the gradient of the weights: by Update
  // With these epilogues a product would also carry out the next operator, or the previous one: a
  // Gelu. They are used only if the device wants them (Kernels::Fuses). kNone: there is none.
  kernels::Epilogue next = kernels::Epilogue::kNone, previous = kernels::Epilogue::kNone;
};

// Of one of a stage's operators. Among peers whose outputs are added, the first one (peer 0) adds
// bias and stream.
LinearProducts ProductsOf(const Job& job, const std::vector<StageOperator>& operators, size_t index,
                          int peer);

// Of all stages and peers of a job, each once; with the epilogues that a device can ask for.
std::vector<kernels::MatmulShape> AllProducts(const Job& job);

}  // namespace pp
