#include "runtime/device/cuda/cuda_driver.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

namespace pp {
namespace {

using kernels::MatmulArgs;
using kernels::MatmulNumbers;
using kernels::MatmulShape;
using kernels::Operands;

// What NVIDIA and TransformerEngine give cuBLASLt on an H100.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

// cuBLASLt's matrices stand by columns, ours by rows: it is asked for the transposed product,
// C^T = op(B)^T op(A)^T, which are the same bytes.
class Product {
 public:
  // Failed: cuBLASLt has no such product. `place` stands for what bias and aux will be, which
  // nobody reads here: all that counts is how it is aligned.
  Status Prepare(cublasLtHandle_t lt, const MatmulShape& shape, const void* place) {
    shape_ = shape;
    const bool halves = shape.numbers != MatmulNumbers::kFp32;
    const cudaDataType in = halves ? CUDA_R_16BF : CUDA_R_32F;
    const cudaDataType out = shape.numbers == MatmulNumbers::kBf16 ? CUDA_R_16BF : CUDA_R_32F;
    const int64_t m = shape.m, n = shape.n, k = shape.k;
    const bool a_turned = shape.operands == Operands::kTN,
               b_turned = shape.operands == Operands::kNT;
    const int64_t lda = shape.lda > 0 ? shape.lda : a_turned ? m : k;
    const int64_t ldb = shape.ldb > 0 ? shape.ldb : b_turned ? k : n;
    const int64_t ldc = shape.ldc > 0 ? shape.ldc : n;
    PP_RETURN_IF_ERROR(Check(cublasLtMatmulDescCreate(&what_, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
    PP_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, b_turned ? CUBLAS_OP_T : CUBLAS_OP_N));
    PP_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSB, a_turned ? CUBLAS_OP_T : CUBLAS_OP_N));
    PP_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(shape)));
    if (shape.bias == kernels::WithBias::kYes) {
      PP_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out));
      PP_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, place));
    }
    if (shape.epilogue != kernels::Epilogue::kNone) {
      PP_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, ldc));
      PP_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, place));
    }
    PP_RETURN_IF_ERROR(
        Check(cublasLtMatrixLayoutCreate(&a_, in, b_turned ? k : n, b_turned ? n : k, ldb)));
    PP_RETURN_IF_ERROR(
        Check(cublasLtMatrixLayoutCreate(&b_, in, a_turned ? m : k, a_turned ? k : m, lda)));
    PP_RETURN_IF_ERROR(Check(cublasLtMatrixLayoutCreate(&c_, out, n, m, ldc)));
    return Choose(lt, {ldb * Size(in), lda * Size(in), ldc * Size(out)});
  }

  Status Run(cublasLtHandle_t lt, const MatmulArgs& args, void* workspace, cudaStream_t stream) {
    const bool residual = shape_.residual == kernels::WithResidual::kYes;
    const float alpha = 1;
    const float beta = residual || shape_.update == kernels::Update::kAdd ? 1 : 0;
    if (shape_.bias == kernels::WithBias::kYes)
      PP_RETURN_IF_ERROR(
          Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(args.bias)));
    if (shape_.epilogue != kernels::Epilogue::kNone)
      PP_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args.aux));
    return Check(cublasLtMatmul(lt, what_, &alpha, args.b, a_, args.a, b_, &beta,
                                residual ? args.residual : args.c, c_, args.c, c_, &algorithm_,
                                workspace, kWorkspaceBytes, stream));
  }

 private:
  // Its GELU is the same formula as ours (kernels/gelu.h).
  static cublasLtEpilogue_t EpilogueOf(const MatmulShape& shape) {
    const bool bias = shape.bias == kernels::WithBias::kYes;
    switch (shape.epilogue) {
      case kernels::Epilogue::kNone:
        return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
      case kernels::Epilogue::kGelu:
        return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
      case kernels::Epilogue::kGeluBackward:
        PP_CHECK(!bias);
        return CUBLASLT_EPILOGUE_DGELU;
    }
    PP_CHECK(false);
  }

  static int64_t Size(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

  static Status Check(cublasStatus_t status) {
    if (status == CUBLAS_STATUS_SUCCESS) return {};
    return Status::Failed(fmt::format("cuBLASLt: {}", cublasLtGetStatusString(status)));
  }

  template <typename T>
  Status Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return Check(cublasLtMatmulDescSetAttribute(what_, attribute, &value, sizeof value));
  }

  // The first choice of the library's own estimate, of those whose sums have one order: not those
  // that add up parts of a sum in place, by whoever comes first.
  Status Choose(cublasLtHandle_t lt, const int64_t (&row_bytes)[3]) {
    cublasLtMatmulPreference_t preference = nullptr;
    PP_RETURN_IF_ERROR(Check(cublasLtMatmulPreferenceCreate(&preference)));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      return Check(
          cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
    };
    Status status = set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (status.ok()) status = set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    const cublasLtMatmulPreferenceAttributes_t of[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4 && status.ok(); ++i) {
      const int64_t bytes = row_bytes[std::min(i, 2)];
      const auto alignment = static_cast<uint32_t>(bytes & -bytes);  // that all rows have
      status = set(of[i], std::min(alignment, 16u));
    }
    cublasLtMatmulHeuristicResult_t best = {};
    int found = 0;
    if (status.ok())
      status = Check(
          cublasLtMatmulAlgoGetHeuristic(lt, what_, a_, b_, c_, c_, preference, 1, &best, &found));
    cublasLtMatmulPreferenceDestroy(preference);
    PP_RETURN_IF_ERROR(status);
    if (found == 0) return Status::Failed("cuBLASLt: has no algorithm for a product");
    algorithm_ = best.algo;
    return {};
  }

  MatmulShape shape_;
  cublasLtMatmulDesc_t what_ = nullptr;  // these live as long as the process
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

class RealCuda : public CudaDriver {
 public:
  explicit RealCuda(int gpu) : gpu_(gpu) { Use(); }

  ~RealCuda() override {
    Use();
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    for (void* memory : memory_) cudaFree(memory);
    for (void* memory : pinned_) cudaFreeHost(memory);
    if (lt_ != nullptr) cublasLtDestroy(lt_);
  }

  void Use() override {
    thread_local int current = -1;
    if (current == gpu_) return;
    if (Check(cudaSetDevice(gpu_))) current = gpu_;
  }

  Result<std::byte*> Take(int64_t bytes) override {
    return TakeBy(cudaMalloc, "GPU", bytes, &memory_);
  }
  Result<std::byte*> TakePinned(int64_t bytes) override {
    return TakeBy(cudaMallocHost, "host", bytes, &pinned_);
  }

  Stream MakeStream() override {
    Use();
    cudaStream_t stream = nullptr;
    Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::lock_guard<std::mutex> lock(mutex_);
    streams_.push_back(stream);
    return stream;
  }
  Event MakeEvent() override {
    Use();
    cudaEvent_t event = nullptr;
    Check(cudaEventCreate(&event));
    std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(event);
    return event;
  }
  // What a launch has left is found here.
  void Record(Event event, Stream stream) override {
    Use();
    Check(cudaGetLastError());
    Check(cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)));
  }
  void WaitFor(Stream stream, Event event) override {
    Use();
    Check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event)));
  }
  bool Reached(Event event) override {
    Use();
    const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (error != cudaErrorNotReady) return Check(error);
    cudaGetLastError();  // which would tell it again as if a launch had failed
    return false;
  }
  double SecondsBetween(Event first, Event second) override {
    Use();
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(first),
                               static_cast<cudaEvent_t>(second)));
    return 1e-3 * milliseconds;
  }

  void Copy(void* to, const void* from, int64_t bytes, Stream stream) override {
    Use();
    Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault,
                          static_cast<cudaStream_t>(stream)));
  }
  // CUDA's runtime repeats bytes, not words: a copy doubles what is there.
  void Fill(void* at, uint32_t word, int64_t words, Stream stream) override {
    if (words == 0) return;
    Result<std::byte*> pinned = TakePinned(sizeof word);
    if (!pinned.ok()) return Keep(pinned.status());
    *reinterpret_cast<uint32_t*>(*pinned) = word;
    Copy(at, *pinned, sizeof word, stream);
    auto* bytes = static_cast<std::byte*>(at);
    for (int64_t done = 1; done < words; done *= 2)
      Copy(bytes + done * 4, at, std::min(done, words - done) * 4, stream);
  }

  int Prepare(const MatmulShape& shape) override {
    const auto found = std::find(shapes_.begin(), shapes_.end(), shape);
    if (found != shapes_.end()) return static_cast<int>(found - shapes_.begin());
    Begin();
    shapes_.push_back(shape);
    products_.emplace_back();
    if (status().ok()) Keep(products_.back().Prepare(lt_, shape, workspace_));
    return static_cast<int>(shapes_.size()) - 1;
  }
  void Multiply(int product, const MatmulArgs& args, Stream stream) override {
    Use();
    if (status().ok())
      Keep(products_[product].Run(lt_, args, workspace_, static_cast<cudaStream_t>(stream)));
  }

  bool Has(const MatmulShape& shape) override {
    Begin();
    return status().ok() && Product().Prepare(lt_, shape, workspace_).ok();
  }

  Status status() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }

 private:
  // Before the first product.
  void Begin() {
    Use();
    if (lt_ != nullptr) return;
    if (cublasLtCreate(&lt_) != CUBLAS_STATUS_SUCCESS)
      Keep(Status::Failed("cuBLASLt: cannot be initialised"));
    Result<std::byte*> workspace = Take(kWorkspaceBytes);
    if (!workspace.ok()) Keep(workspace.status());
    if (workspace.ok()) workspace_ = *workspace;
  }

  void Keep(const Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = status;
  }
  bool Check(cudaError_t error) {
    if (error == cudaSuccess) return true;
    Keep(Status::Failed(fmt::format("CUDA: {}", cudaGetErrorString(error))));
    return false;
  }
  Result<std::byte*> TakeBy(cudaError_t (*allocate)(void**, size_t), const char* whose,
                            int64_t bytes, std::vector<void*>* taken) {
    Use();
    void* memory = nullptr;
    const cudaError_t error = allocate(&memory, static_cast<size_t>(bytes));
    if (error != cudaSuccess)
      return Status::Invalid(
          fmt::format("the plan takes {} bytes of the {}'s memory on one rank: {}", bytes, whose,
                      cudaGetErrorString(error)));
    std::lock_guard<std::mutex> lock(mutex_);
    taken->push_back(memory);
    return static_cast<std::byte*>(memory);
  }

  const int gpu_;
  mutable std::mutex mutex_;  // of what follows, but for products
  Status status_;
  std::vector<void*> memory_, pinned_;
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  // The compute thread's.
  cublasLtHandle_t lt_ = nullptr;
  std::byte* workspace_ = nullptr;
  std::vector<MatmulShape> shapes_;
  std::vector<Product> products_;
};

}  // namespace

Result<std::vector<uint64_t>> FindGpus() {
  int count = 0;  // CUDA leaves it alone where it fails
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0)
    return Status::Invalid(fmt::format(
        "no GPU: {} (cpu)", error == cudaSuccess ? "none is visible" : cudaGetErrorString(error)));
  std::vector<uint64_t> gpus(count);
  for (int gpu = 0; gpu < count; ++gpu) {
    cudaDeviceProp properties;
    if (const cudaError_t no = cudaGetDeviceProperties(&properties, gpu); no != cudaSuccess)
      return Status::Invalid(fmt::format("GPU {}: {} (cpu)", gpu, cudaGetErrorString(no)));
    uint64_t halves[2];
    static_assert(sizeof halves == sizeof properties.uuid);
    std::memcpy(halves, &properties.uuid, sizeof halves);
    gpus[gpu] = (halves[0] ^ halves[1]) | 1;
  }
  return gpus;
}

std::unique_ptr<CudaDriver> MakeCudaDriver(int gpu) { return std::make_unique<RealCuda>(gpu); }

}  // namespace pp
