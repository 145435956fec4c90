#include "tests/fake_cublaslt.h"

#include <cstring>

namespace pp {

FakeCublasLt& CublasLt() {
  static FakeCublasLt fake;
  return fake;
}

namespace {

template <typename Handle>
cublasStatus_t Make(Handle* handle, cublasStatus_t status = CUBLAS_STATUS_SUCCESS) {
  if (status == CUBLAS_STATUS_SUCCESS) {
    ++CublasLt().alive;
    *handle = reinterpret_cast<Handle>(uintptr_t{16});
  }
  return status;
}
cublasStatus_t Destroy() {
  --CublasLt().alive;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace pp

using pp::CublasLt;
using pp::Destroy;
using pp::Make;

size_t cublasLtGetVersion() { return 130000; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return Make(handle); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return Destroy(); }
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED   ? "not supported"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "invalid value"
                                                 : "failed";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* what, cublasComputeType_t,
                                        cudaDataType_t) {
  return Make(what);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) { return Destroy(); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET)
    std::memcpy(&CublasLt().multiprocessors, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType, uint64_t,
                                          uint64_t, int64_t) {
  return Make(layout, CublasLt().layout);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) { return Destroy(); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return Make(preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) { return Destroy(); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  uint64_t number = 0;
  std::memcpy(&number, value, bytes);
  CublasLt().preference[attribute] = number;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int most,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  CublasLt().most = most;
  CublasLt().asked_of = CublasLt().multiprocessors;
  if (CublasLt().heuristic != CUBLAS_STATUS_SUCCESS) return CublasLt().heuristic;
  *found = most < CublasLt().algorithms ? most : CublasLt().algorithms;
  for (int i = 0; i < *found; ++i) {
    results[i] = {};
    results[i].algo.data[0] = i + 1;
    results[i].state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t*,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  result->workspaceSize = 4096;
  return CublasLt().check;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  if (CublasLt().not_told.contains(attribute)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto scheme = CublasLt().schemes.find(algorithm->data[0]);
  uint32_t number = static_cast<uint32_t>(algorithm->data[0]);
  if (attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)
    number = scheme == CublasLt().schemes.end() ? 0 : scheme->second;
  std::memcpy(value, &number, bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                              cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t,
                              const void*, const void*, cublasLtMatrixLayout_t, void*,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t* algorithm, void*,
                              size_t, cudaStream_t) {
  const auto status = CublasLt().run.find(algorithm->data[0]);
  if (status != CublasLt().run.end()) return status->second;
  CublasLt().ran.push_back(algorithm->data[0]);
  CublasLt().ran_on = CublasLt().multiprocessors;
  return CUBLAS_STATUS_SUCCESS;
}
