// Matrix products on a GPU: by cuBLASLt, or, where it refuses a shape or an operand is not aligned,
// by a kernel of ours (kernels/plain_matmul.h). An epilogue that a product does not have is a
// kernel after it, whoever computes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/cuda/driver.h"
#include "runtime/device/cuda/gemm_table.h"

namespace pp {

// Bytes from each operand's first element to its last one. REQUIRES: on a GPU, where B and bias
// have A's type.
struct OperandBytes {
  int64_t a = 0, b = 0, c = 0, bias = 0;  // residual and aux: c

  explicit OperandBytes(const kernels::MatmulShape& shape);
};

// Whether a product with this epilogue may be left to cuBLASLt as one.
bool MayFuse(const kernels::MatmulShape& shape);

// A product with its epilogue has the result of the one without it, followed by the epilogue's
// kernel, which reads C or aux. REQUIRES: kernels::Rounds, and rows of C without gaps.
kernels::MatmulShape WithoutEpilogue(kernels::MatmulShape shape);
kernels::MatmulArgs WithoutEpilogue(const kernels::MatmulShape& shape, kernels::MatmulArgs args);
void RunEpilogue(const kernels::MatmulShape& shape, const kernels::MatmulArgs& args,
                 CudaDriver::Stream stream);

// Those of one stream, and of a second one beside it. Which of the two computes a product depends
// only on its shape, its operands' columns, the machine and the file of algorithms.
class CudaProducts {
 public:
  struct Args {
    CudaDriver* driver = nullptr;
    CudaDriver::Stream stream = nullptr;
    const GemmTable* gemms = nullptr;  // null, or has none for a product: cuBLASLt's first choice
    bool fuses_gelu = true;
    // Memory of the device without values, with room for the operands of any product: each is
    // computed there once, when it is prepared. It holds kUntouchedWord afterwards.
    std::span<std::byte> dead;
    std::function<void(const std::string&)> note = [](const std::string&) {};  // tells the user
  };

  explicit CudaProducts(Args args);

  // As in Kernels. Both wait until the GPU has computed a product of the shape. A shape has one id.
  int Prepare(const kernels::MatmulShape& shape);
  bool Fuses(const kernels::MatmulShape& shape);
  // Operands of one type. In `stream`, with args.scratch where it is not the first one
  // (CudaDriver::Multiply).
  void Multiply(int product, const kernels::MatmulArgs& args, CudaDriver::Stream stream);
  void Multiply(int product, const kernels::MatmulArgs& args) {
    Multiply(product, args, args_.stream);
  }

  const kernels::MatmulShape& shape(int product) const { return products_[product].shape; }
  // Which algorithm computes it, in words.
  const std::string& text(int product) const { return products_[product].by.text; }

 private:
  struct Product {
    kernels::MatmulShape shape;
    PreparedProduct by;
  };

  int Add(const kernels::MatmulShape& shape);
  void Finish(int64_t written);

  const Args args_;
  const CudaDriver::Event tried_;
  std::vector<Product> products_;
};

}  // namespace pp
