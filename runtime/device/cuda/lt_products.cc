#include "runtime/device/cuda/lt_products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/workspace.h"

namespace pp {

using kernels::Epilogue;
using kernels::MatmulArgs;
using kernels::MatmulNumbers;
using kernels::MatmulShape;
using kernels::Operands;

namespace {

cudaDataType OperandsOf(MatmulNumbers numbers) {
  switch (numbers) {
    case MatmulNumbers::kFp32:
      return CUDA_R_32F;
    case MatmulNumbers::kBf16:
    case MatmulNumbers::kBf16Sum:
      return CUDA_R_16BF;
    case MatmulNumbers::kFp16:
    case MatmulNumbers::kFp16Sum:
      return CUDA_R_16F;
  }
  PP_CHECK(false);
}

constexpr auto kWorkspaceBytes = static_cast<size_t>(kernels::cuda::kProductBytes);

static_assert(sizeof(GemmAlgorithm) == sizeof(cublasLtMatmulAlgo_t));

constexpr uint32_t kReductionSchemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

Status Check(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return Status::Failed(fmt::format("cuBLASLt: {}", cublasLtGetStatusString(status)));
}

template <typename T>
Status Set(cublasLtMatmulDesc_t what, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  return Check(cublasLtMatmulDescSetAttribute(what, attribute, &value, sizeof value));
}

int64_t BytesOf(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

// Its GELU is the same formula as ours (kernels/gelu.h).
cublasLtEpilogue_t EpilogueOf(const MatmulShape& shape) {
  const bool bias = shape.bias == kernels::WithBias::kYes;
  switch (shape.epilogue) {
    case Epilogue::kNone:
      return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kGelu:
      return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::kGeluBackward:
      PP_CHECK(!bias);
      return CUBLASLT_EPILOGUE_DGELU;
  }
  PP_CHECK(false);
}

bool InOneOrder(const cublasLtMatmulAlgo_t& algorithm) {
  uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  size_t written = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoConfigGetAttribute(
      &algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &written);
  return status == CUBLAS_STATUS_SUCCESS && (scheme & ~kReductionSchemes) == 0;
}

}  // namespace

LtProducts::~LtProducts() {
  for (const Descriptors& of : descriptors_) {
    for (cublasLtMatrixLayout_t layout : {of.a, of.b, of.c})
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    if (of.what != nullptr) cublasLtMatmulDescDestroy(of.what);
  }
  if (lt_ != nullptr) cublasLtDestroy(lt_);
}

Status LtProducts::Begin(void* workspace) {
  workspace_ = workspace;
  return Check(cublasLtCreate(&lt_));
}

int LtProducts::Describe(const MatmulShape& shape) {
  const MatmulShape whole = Whole(shape);
  const auto found = std::find_if(descriptors_.begin(), descriptors_.end(),
                                  [&](const Descriptors& one) { return one.shape == whole; });
  const int index = static_cast<int>(found - descriptors_.begin());
  if (found != descriptors_.end()) return index;
  Descriptors& of = descriptors_.emplace_back();
  of.shape = whole;
  of.status = Fill(&of);
  return index;
}

// cuBLASLt's matrices are column-major, ours row-major: it is asked for the transposed product, C^T
// = op(B)^T op(A)^T, which has the same bytes. For bias and aux only the alignment matters here, as
// for the workspace.
Status LtProducts::Fill(Descriptors* of) const {
  const MatmulShape& shape = of->shape;
  const cudaDataType in = OperandsOf(shape.numbers);
  const cudaDataType out = kernels::Rounds(shape.numbers) ? in : CUDA_R_32F;
  const int64_t m = shape.m, n = shape.n, k = shape.k;
  const bool a_transposed = shape.operands == Operands::kTN,
             b_transposed = shape.operands == Operands::kNT;
  const void* place = workspace_;
  PP_RETURN_IF_ERROR(Check(cublasLtMatmulDescCreate(&of->what, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
  const auto set = [&](auto attribute, const auto& value) {
    return Set(of->what, attribute, value);
  };
  PP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  PP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  PP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(shape)));
  if (shape.bias == kernels::WithBias::kYes) {
    PP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out));
    PP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, place));
  }
  if (shape.epilogue != Epilogue::kNone) {
    PP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, shape.ldc));
    PP_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, place));
  }
  PP_RETURN_IF_ERROR(Check(cublasLtMatrixLayoutCreate(&of->a, in, b_transposed ? k : n,
                                                      b_transposed ? n : k, shape.ldb)));
  PP_RETURN_IF_ERROR(Check(cublasLtMatrixLayoutCreate(&of->b, in, a_transposed ? m : k,
                                                      a_transposed ? k : m, shape.lda)));
  PP_RETURN_IF_ERROR(Check(cublasLtMatrixLayoutCreate(&of->c, out, n, m, shape.ldc)));
  of->row_bytes[0] = shape.ldb * BytesOf(in);
  of->row_bytes[1] = shape.lda * BytesOf(in);
  of->row_bytes[2] = of->row_bytes[3] = shape.ldc * BytesOf(out);
  return {};
}

// The library's own ranking, its best one first.
Result<std::vector<cublasLtMatmulAlgo_t>> LtProducts::Choices(const Descriptors& of,
                                                              int most) const {
  PP_RETURN_IF_ERROR(of.status);
  cublasLtMatmulPreference_t preference = nullptr;
  PP_RETURN_IF_ERROR(Check(cublasLtMatmulPreferenceCreate(&preference)));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return Check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
  };
  Status status = set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  if (status.ok()) status = set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductionSchemes);
  const cublasLtMatmulPreferenceAttributes_t alignments[4] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  for (int i = 0; i < 4 && status.ok(); ++i) {
    const int64_t bytes = of.row_bytes[i];
    const auto alignment = static_cast<uint32_t>(bytes & -bytes);  // that all rows have
    status = set(alignments[i], std::min(alignment, 16u));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(most);
  int found = 0;
  if (status.ok())
    status = Check(cublasLtMatmulAlgoGetHeuristic(lt_, of.what, of.a, of.b, of.c, of.c, preference,
                                                  most, results.data(), &found));
  cublasLtMatmulPreferenceDestroy(preference);
  PP_RETURN_IF_ERROR(status);
  std::vector<cublasLtMatmulAlgo_t> choices;
  for (int i = 0; i < found; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS && InOneOrder(results[i].algo))
      choices.push_back(results[i].algo);
  return choices;
}

// Whether cuBLASLt can compute this by the algorithm, in a fixed order and within the workspace.
bool LtProducts::Computes(const Descriptors& of, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result = {};
  return of.status.ok() && InOneOrder(algorithm) &&
         cublasLtMatmulAlgoCheck(lt_, of.what, of.a, of.b, of.c, of.c, &algorithm, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kWorkspaceBytes;
}

std::vector<GemmAlgorithm> LtProducts::Algorithms(const MatmulShape& shape, int most) {
  const Descriptors& of = descriptors_[Describe(shape)];
  const auto choices = Choices(of, most);
  std::vector<GemmAlgorithm> algorithms;
  if (!choices.ok()) return algorithms;
  for (const cublasLtMatmulAlgo_t& choice : *choices)
    if (Computes(of, choice)) std::memcpy(&algorithms.emplace_back(), &choice, sizeof choice);
  return algorithms;
}

Result<int> LtProducts::Prepare(const MatmulShape& shape, const GemmAlgorithm* algorithm) {
  Product product = {.descriptors = Describe(shape), .first_choice = algorithm == nullptr};
  const Descriptors& of = descriptors_[product.descriptors];
  if (algorithm != nullptr) std::memcpy(&product.algorithm, algorithm, sizeof *algorithm);
  for (size_t i = 0; i < products_.size(); ++i) {
    const Product& one = products_[i];
    if (one.descriptors == product.descriptors && one.first_choice == product.first_choice &&
        (algorithm == nullptr || std::memcmp(&one.algorithm, algorithm, sizeof *algorithm) == 0))
      return static_cast<int>(i);
  }
  if (algorithm != nullptr) {
    if (!Computes(of, product.algorithm))
      return Status::Invalid(fmt::format(
          "--gemms: cuBLASLt does not take the algorithm of '{}' (piperun --tune-gemms)",
          ToText(shape)));
  } else {
    const auto choices = Choices(of, 8);
    PP_RETURN_IF_ERROR(choices.status());
    if (choices->empty())
      return Status::Failed(
          fmt::format("cuBLASLt: has no algorithm for a product '{}'", ToText(shape)));
    product.algorithm = choices->front();
  }
  products_.push_back(product);
  return static_cast<int>(products_.size()) - 1;
}

Status LtProducts::Multiply(int product, const MatmulArgs& args, cudaStream_t stream) {
  const Descriptors& of = descriptors_[products_[product].descriptors];
  const MatmulShape& shape = of.shape;
  const bool residual = shape.residual == kernels::WithResidual::kYes;
  const float alpha = 1, beta = residual || shape.update == kernels::Update::kAdd ? 1 : 0;
  if (shape.bias == kernels::WithBias::kYes)
    PP_RETURN_IF_ERROR(
        Set(of.what, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(args.bias)));
  if (shape.epilogue != Epilogue::kNone)
    PP_RETURN_IF_ERROR(Set(of.what, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args.aux));
  return Check(cublasLtMatmul(lt_, of.what, &alpha, args.b, of.a, args.a, of.b, &beta,
                              residual ? args.residual : args.c, of.c, args.c, of.c,
                              &products_[product].algorithm, workspace_, kWorkspaceBytes, stream));
}

}  // namespace pp
