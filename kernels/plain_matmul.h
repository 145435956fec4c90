// A matrix product as a GPU computes it where cuBLASLt does not: matrices of one row or column, or
// rows of odd lengths, which it may refuse. Slower, but of any shape, and with the same bits
// always: each sum is one of fp32 fused multiply-adds in the order of k.
#pragma once

#include "kernels/matmul.h"
#include "kernels/stream.h"

namespace pp::kernels {

struct PlainMatmulArgs {
  MatmulShape shape;  // without an epilogue
  // As in matmul.h, except that all operands have A's type, bias included, as cuBLASLt takes them.
  // No scratch.
  MatmulArgs args;
};

namespace cuda {

void PlainMatmul(const PlainMatmulArgs& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
