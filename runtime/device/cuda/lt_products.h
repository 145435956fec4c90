// Matrix products of one GPU by cuBLASLt: what each shape needs is prepared once.
//
// Only algorithms whose sums have a fixed order are used. A sum that is cut in parts ("split-K")
// must be added up in fp32 after all of them, from the workspace, or not be cut: not in place, in
// order of arrival, nor from parts that are rounded.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/matmul.h"
#include "runtime/device/cuda/gemm_table.h"
#include "schema/status.h"

namespace pp {

class LtProducts {
 public:
  LtProducts() = default;
  LtProducts(const LtProducts&) = delete;
  LtProducts& operator=(const LtProducts&) = delete;
  ~LtProducts();

  // Call this first, once: kernels::cuda::kProductBytes on the device.
  Status Begin(void* workspace);

  // These three as in driver.h.
  std::vector<GemmAlgorithm> Algorithms(const kernels::MatmulShape& shape, int most);
  Result<int> Prepare(const kernels::MatmulShape& shape, const GemmAlgorithm* algorithm);
  Status Multiply(int product, const kernels::MatmulArgs& args, cudaStream_t stream);

 private:
  // For one shape.
  struct Descriptors {
    kernels::MatmulShape shape;
    Status status;  // why there are none
    cublasLtMatmulDesc_t what = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    int64_t row_bytes[4] = {};  // of A, B, C and D
  };
  struct Product {
    int descriptors = 0;
    cublasLtMatmulAlgo_t algorithm = {};
    bool first_choice = false;
  };

  int Describe(const kernels::MatmulShape& shape);
  Status Fill(Descriptors* of) const;
  bool Computes(const Descriptors& of, const cublasLtMatmulAlgo_t& algorithm) const;
  Result<std::vector<cublasLtMatmulAlgo_t>> Choices(const Descriptors& of, int most) const;

  cublasLtHandle_t lt_ = nullptr;
  void* workspace_ = nullptr;
  std::vector<Descriptors> descriptors_;  // by shape
  std::vector<Product> products_;
};

}  // namespace pp
