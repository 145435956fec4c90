#include "runtime/device/cuda/lt_products.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

// How many of its choices are tried before a product counts as refused.
constexpr int kChoices = 8;

Status Check(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return Status::Failed(fmt::format("cuBLASLt: {}", cublasLtGetStatusString(status)));
}

// Not an error of the machine: it has no such product.
bool Refuses(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

#define PP_RETURN_UNLESS_SUCCESS(call)                                  \
  do {                                                                  \
    const cublasStatus_t status_of_call = (call);                       \
    if (status_of_call != CUBLAS_STATUS_SUCCESS) return status_of_call; \
  } while (false)

template <typename T>
cublasStatus_t Set(cublasLtMatmulDesc_t what, cublasLtMatmulDescAttributes_t attribute,
                   const T& value) {
  return cublasLtMatmulDescSetAttribute(what, attribute, &value, sizeof value);
}

template <typename T>
bool Get(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute,
         T* value) {
  size_t written = 0;
  return cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, value, sizeof *value,
                                              &written) == CUBLAS_STATUS_SUCCESS;
}

int64_t BytesOf(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

// Products occupy at most so many multiprocessors; 0: all.
cublasStatus_t Occupy(cublasLtMatmulDesc_t what, int32_t multiprocessors) {
  return Set(what, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, multiprocessors);
}

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

// Among which its algorithms may choose; that of sums that are not cut is always allowed.
uint32_t LtProducts::Schemes() const {
  switch (experiments_.cut_sums) {
    case CutSums::kNever:
      return CUBLASLT_REDUCTION_SCHEME_NONE;
    case CutSums::kInOrder:
      return CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    case CutSums::kAnyOrder:
      return CUBLASLT_REDUCTION_SCHEME_MASK;
  }
  PP_CHECK(false);
}

bool LtProducts::InOneOrder(const cublasLtMatmulAlgo_t& algorithm) const {
  uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  return !Get(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme) ||
         (scheme & ~Schemes()) == 0;
}

// cuBLASLt's matrices are column-major, ours row-major: it is asked for the transposed product, C^T
// = op(B)^T op(A)^T, which has the same bytes. For bias and aux only the alignment matters here, as
// for the workspace.
cublasStatus_t LtProducts::Fill(Descriptors* of) const {
  const MatmulShape& shape = of->shape;
  const cudaDataType in = OperandsOf(shape.numbers);
  const cudaDataType out = kernels::Rounds(shape.numbers) ? in : CUDA_R_32F;
  const int64_t m = shape.m, n = shape.n, k = shape.k;
  const bool a_transposed = shape.operands == Operands::kTN,
             b_transposed = shape.operands == Operands::kNT;
  const int64_t row_bytes[] = {shape.ldb * BytesOf(in), shape.lda * BytesOf(in),
                               shape.ldc * BytesOf(out), shape.ldc * BytesOf(out)};
  for (int i = 0; i < 4; ++i)
    of->alignments[i] = RowAlignment(row_bytes[i], experiments_.alignment);
  const void* place = workspace_;
  PP_RETURN_UNLESS_SUCCESS(cublasLtMatmulDescCreate(&of->what, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const auto set = [&](auto attribute, const auto& value) {
    return Set(of->what, attribute, value);
  };
  PP_RETURN_UNLESS_SUCCESS(
      set(CUBLASLT_MATMUL_DESC_TRANSA, b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  PP_RETURN_UNLESS_SUCCESS(
      set(CUBLASLT_MATMUL_DESC_TRANSB, a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  PP_RETURN_UNLESS_SUCCESS(set(CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(shape)));
  PP_RETURN_UNLESS_SUCCESS(Occupy(of->what, multiprocessors_));
  if (shape.bias == kernels::WithBias::kYes) {
    PP_RETURN_UNLESS_SUCCESS(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out));
    PP_RETURN_UNLESS_SUCCESS(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, place));
  }
  if (shape.epilogue != Epilogue::kNone) {
    PP_RETURN_UNLESS_SUCCESS(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, shape.ldc));
    PP_RETURN_UNLESS_SUCCESS(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, place));
  }
  PP_RETURN_UNLESS_SUCCESS(cublasLtMatrixLayoutCreate(&of->a, in, b_transposed ? k : n,
                                                      b_transposed ? n : k, shape.ldb));
  PP_RETURN_UNLESS_SUCCESS(cublasLtMatrixLayoutCreate(&of->b, in, a_transposed ? m : k,
                                                      a_transposed ? k : m, shape.lda));
  return cublasLtMatrixLayoutCreate(&of->c, out, n, m, shape.ldc);
}

// The library's own ranking, its best one first.
cublasStatus_t LtProducts::Choices(const Descriptors& of, int most,
                                   std::vector<cublasLtMatmulAlgo_t>* choices) const {
  PP_RETURN_UNLESS_SUCCESS(of.status);
  cublasLtMatmulPreference_t preference = nullptr;
  PP_RETURN_UNLESS_SUCCESS(cublasLtMatmulPreferenceCreate(&preference));
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    if (status == CUBLAS_STATUS_SUCCESS)
      status = cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, Schemes());
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of.alignments[0]);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of.alignments[1]);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of.alignments[2]);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of.alignments[3]);
  std::vector<cublasLtMatmulHeuristicResult_t> results(most);
  int found = 0;
  // Asked as if all multiprocessors were there: bits must not depend on who else needs some.
  if (status == CUBLAS_STATUS_SUCCESS) status = Occupy(of.what, 0);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulAlgoGetHeuristic(lt_, of.what, of.a, of.b, of.c, of.c, preference, most,
                                            results.data(), &found);
  if (status == CUBLAS_STATUS_SUCCESS) status = Occupy(of.what, multiprocessors_);
  cublasLtMatmulPreferenceDestroy(preference);
  PP_RETURN_UNLESS_SUCCESS(status);
  for (int i = 0; i < found; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS && InOneOrder(results[i].algo))
      choices->push_back(results[i].algo);
  return choices->empty() ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

// Whether cuBLASLt can compute this by the algorithm, in a fixed order and within the workspace.
bool LtProducts::Computes(const Descriptors& of, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result = {};
  return of.status == CUBLAS_STATUS_SUCCESS && InOneOrder(algorithm) &&
         cublasLtMatmulAlgoCheck(lt_, of.what, of.a, of.b, of.c, of.c, &algorithm, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kWorkspaceBytes;
}

std::vector<GemmAlgorithm> LtProducts::Algorithms(const MatmulShape& shape, int most) {
  const Descriptors& of = descriptors_[Describe(shape)];
  std::vector<cublasLtMatmulAlgo_t> choices;
  std::vector<GemmAlgorithm> algorithms;
  if (Choices(of, most, &choices) != CUBLAS_STATUS_SUCCESS) return algorithms;
  for (const cublasLtMatmulAlgo_t& choice : choices)
    if (Computes(of, choice))
      std::memcpy(algorithms.emplace_back().words.data(), &choice, sizeof choice);
  return algorithms;
}

Result<PreparedProduct> LtProducts::Prepare(const MatmulShape& shape,
                                            const GemmAlgorithm* algorithm, const MatmulArgs& dead,
                                            cudaStream_t stream) {
  Product product = {.descriptors = Describe(shape), .first_choice = algorithm == nullptr};
  if (algorithm != nullptr) std::memcpy(&product.algorithm, algorithm, sizeof *algorithm);
  for (const Product& one : products_)
    if (one.descriptors == product.descriptors && one.first_choice == product.first_choice &&
        (algorithm == nullptr || std::memcmp(&one.algorithm, algorithm, sizeof *algorithm) == 0))
      return one.prepared;
  const Descriptors& of = descriptors_[product.descriptors];
  std::vector<cublasLtMatmulAlgo_t> choices;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (algorithm == nullptr) {
    status = Choices(of, kChoices, &choices);
  } else if (Computes(of, product.algorithm)) {
    choices.push_back(product.algorithm);
  } else {
    return Status::Invalid(
        fmt::format("--gemms: cuBLASLt does not take the algorithm of '{}' (piperun --tune-gemms)",
                    ToText(shape)));
  }
  PP_RETURN_IF_ERROR(Try(choices, dead, stream, status, &product));
  products_.push_back(product);
  return product.prepared;
}

// Takes the first one that computes the product. `status`: why there is none to try.
Status LtProducts::Try(const std::vector<cublasLtMatmulAlgo_t>& choices, const MatmulArgs& dead,
                       cudaStream_t stream, cublasStatus_t status, Product* product) const {
  const Descriptors& of = descriptors_[product->descriptors];
  PreparedProduct& prepared = product->prepared;
  for (const cublasLtMatmulAlgo_t& choice : choices) {
    status = Run(of, choice, dead, stream);
    if (status == CUBLAS_STATUS_SUCCESS) {
      uint32_t scheme = 0;
      if (product->first_choice) product->algorithm = choice;
      prepared.id = static_cast<int>(products_.size());
      prepared.text = Text(of, choice);
      if (!Get(choice, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme))
        prepared.note = fmt::format("cuBLASLt does not tell how it adds up '{}' ({})",
                                    ToText(of.shape), prepared.text);
      return {};
    }
    if (!Refuses(status)) break;
  }
  prepared.text = fmt::format("{}, asked for {}", cublasLtGetStatusString(status), Asked(of));
  return Refuses(status) ? Status()
                         : Status::Failed(fmt::format("cuBLASLt: product '{}': {}",
                                                      ToText(of.shape), prepared.text));
}

cublasStatus_t LtProducts::Run(const Descriptors& of, const cublasLtMatmulAlgo_t& algorithm,
                               const MatmulArgs& args, cudaStream_t stream) const {
  const MatmulShape& shape = of.shape;
  const bool residual = shape.residual == kernels::WithResidual::kYes;
  const float alpha = 1, beta = residual || shape.update == kernels::Update::kAdd ? 1 : 0;
  if (shape.bias == kernels::WithBias::kYes)
    PP_RETURN_UNLESS_SUCCESS(
        Set(of.what, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(args.bias)));
  if (shape.epilogue != Epilogue::kNone)
    PP_RETURN_UNLESS_SUCCESS(Set(of.what, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args.aux));
  return cublasLtMatmul(lt_, of.what, &alpha, args.b, of.a, args.a, of.b, &beta,
                        residual ? args.residual : args.c, of.c, args.c, of.c, &algorithm,
                        args.scratch != nullptr ? args.scratch : workspace_, kWorkspaceBytes,
                        stream);
}

Status LtProducts::Multiply(int product, const MatmulArgs& args, cudaStream_t stream) {
  const Product& one = products_[product];
  const Descriptors& of = descriptors_[one.descriptors];
  return Check(Run(of, one.algorithm, args, stream))
      .In(fmt::format("product '{}' ({})", ToText(of.shape), one.prepared.text));
}

// An attribute that it does not tell is "?".
std::string LtProducts::Text(const Descriptors& of, const cublasLtMatmulAlgo_t& algorithm) const {
  const auto value = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
    uint32_t number = 0;
    return Get(algorithm, attribute, &number) ? std::to_string(number) : "?";
  };
  cublasLtMatmulHeuristicResult_t result = {};
  const bool checked = cublasLtMatmulAlgoCheck(lt_, of.what, of.a, of.b, of.c, of.c, &algorithm,
                                               &result) == CUBLAS_STATUS_SUCCESS;
  return fmt::format("algorithm {}, tile {}, stages {}, split-K {}, reduction {}, workspace {}",
                     value(CUBLASLT_ALGO_CONFIG_ID), value(CUBLASLT_ALGO_CONFIG_TILE_ID),
                     value(CUBLASLT_ALGO_CONFIG_STAGES_ID), value(CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                     value(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
                     checked ? std::to_string(result.workspaceSize) : "?");
}

std::string LtProducts::Asked(const Descriptors& of) const {
  return fmt::format("workspace {}, reductions {}, alignments {}", kWorkspaceBytes, Schemes(),
                     fmt::join(of.alignments, " "));
}

}  // namespace pp
