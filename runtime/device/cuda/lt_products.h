// Matrix products of one GPU by cuBLASLt: what each shape needs is prepared once.
//
// Only algorithms whose sums have a fixed order are used, unless an experiment asks for others. A
// sum that is cut in parts ("split-K") must be added up in fp32 after all of them, from the
// workspace, or not be cut: not in place, in order of arrival, nor from parts that are rounded.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "kernels/matmul.h"
#include "runtime/device/cuda/driver.h"
#include "runtime/device/cuda/experiments.h"
#include "runtime/device/cuda/gemm_table.h"
#include "schema/base/status.h"

namespace pp {

class LtProducts {
 public:
  // Products occupy at most so many multiprocessors; 0: all.
  explicit LtProducts(const CudaExperiments& experiments, int32_t multiprocessors = 0)
      : experiments_(experiments), multiprocessors_(multiprocessors) {}
  LtProducts(const LtProducts&) = delete;
  LtProducts& operator=(const LtProducts&) = delete;
  ~LtProducts();

  // Call this first, once: kernels::cuda::kProductBytes on the device.
  Status Begin(void* workspace);

  // These three as in driver.h. Invalid: the algorithm is not one for the shape.
  std::vector<GemmAlgorithm> Algorithms(const kernels::MatmulShape& shape, int most);
  Result<PreparedProduct> Prepare(const kernels::MatmulShape& shape, const GemmAlgorithm* algorithm,
                                  const kernels::MatmulArgs& dead, cudaStream_t stream);
  Status Multiply(int product, const kernels::MatmulArgs& args, cudaStream_t stream);

 private:
  // For one shape.
  struct Descriptors {
    kernels::MatmulShape shape;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;  // why there are none
    cublasLtMatmulDesc_t what = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    uint32_t alignments[4] = {};  // of A, B, C and D, as it is asked for them
  };
  struct Product {
    int descriptors = 0;
    cublasLtMatmulAlgo_t algorithm = {};
    bool first_choice = false;
    PreparedProduct prepared;
  };

  int Describe(const kernels::MatmulShape& shape);
  cublasStatus_t Fill(Descriptors* of) const;
  uint32_t Schemes() const;
  bool InOneOrder(const cublasLtMatmulAlgo_t& algorithm) const;
  bool Computes(const Descriptors& of, const cublasLtMatmulAlgo_t& algorithm) const;
  cublasStatus_t Choices(const Descriptors& of, int most,
                         std::vector<cublasLtMatmulAlgo_t>* choices) const;
  cublasStatus_t Run(const Descriptors& of, const cublasLtMatmulAlgo_t& algorithm,
                     const kernels::MatmulArgs& args, cudaStream_t stream) const;
  Status Try(const std::vector<cublasLtMatmulAlgo_t>& choices, const kernels::MatmulArgs& dead,
             cudaStream_t stream, cublasStatus_t status, Product* product) const;
  std::string Text(const Descriptors& of, const cublasLtMatmulAlgo_t& algorithm) const;
  std::string Asked(const Descriptors& of) const;

  const CudaExperiments experiments_;
  const int32_t multiprocessors_;
  cublasLtHandle_t lt_ = nullptr;
  void* workspace_ = nullptr;
  std::vector<Descriptors> descriptors_;  // by shape
  std::vector<Product> products_;         // those that are refused, too
};

}  // namespace pp
