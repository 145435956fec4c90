// A product with its epilogue (matmul.h) on a CPU: the product, followed by the kernel.
#pragma once

#include <cstdint>

#include "kernels/cpu/matmul_numbers.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {

// `product` computes one without an epilogue.
template <typename Product>
void WithEpilogue(const MatmulRunArgs& run, const Product& product) {
  const MatmulShape& shape = run.shape;
  if (shape.epilogue == Epilogue::kNone) return product(run);
  MatmulRunArgs plain = run;
  plain.shape.epilogue = Epilogue::kNone;
  if (shape.epilogue == Epilogue::kGelu) plain.args.c = run.args.aux;
  product(plain);
  const bool gaps = shape.ldc != shape.n;
  const int64_t rows = gaps ? shape.m : 1, n = gaps ? shape.n : shape.m * shape.n;
  ForNumbers(shape.numbers, [&]<typename A, typename B, typename C>() {
    for (int64_t i = 0; i < rows; ++i) {
      C* c = static_cast<C*>(run.args.c) + i * shape.ldc;
      const C* aux = static_cast<const C*>(run.args.aux) + i * shape.ldc;
      if (shape.epilogue == Epilogue::kGelu) {
        GeluForward<C>({.n = n, .x = aux, .y = c});
      } else {
        GeluBackward<C>({.n = n, .x = aux, .dy = c, .dx = c});
      }
    }
  });
}

}  // namespace pp::kernels::PP_ISA
