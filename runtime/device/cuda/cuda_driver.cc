#include "runtime/device/cuda/cuda_driver.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/launchable.h"
#include "runtime/device/cuda/lt_products.h"

namespace pp {
namespace {

// The calling thread's GPU. All of this program's go through here: CUDA makes a context, of some
// hundred MB, on every GPU that cudaSetDevice names.
cudaError_t UseGpu(int gpu) {
  thread_local int current = -1;
  if (current == gpu) return cudaSuccess;
  const cudaError_t error = cudaSetDevice(gpu);
  if (error == cudaSuccess) current = gpu;
  return error;
}

class RealCuda : public CudaDriver {
 public:
  RealCuda(int gpu, const CudaExperiments& experiments) : gpu_(gpu), experiments_(experiments) {
    Use();
  }

  ~RealCuda() override {
    Use();
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    for (void* memory : memory_) cudaFree(memory);
    for (void* memory : pinned_) cudaFreeHost(memory);
    products_.reset();
  }

  void Use() override { Check(UseGpu(gpu_)); }

  Result<std::byte*> Allocate(int64_t bytes) override {
    Result<std::byte*> taken =
        TakeBy([](void** at, size_t n) { return cudaMalloc(at, n); }, "GPU", bytes, &memory_);
    std::lock_guard<std::mutex> lock(mutex_);
    if (taken.ok()) bytes_ += bytes;
    return taken;
  }
  int64_t bytes() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return bytes_;
  }
  int64_t FreeBytes() override {
    Use();
    size_t free = 0, all = 0;
    Check(cudaMemGetInfo(&free, &all));
    return static_cast<int64_t>(free);
  }
  Result<std::byte*> TakePinned(int64_t bytes) override {
    return TakeBy([](void** at, size_t n) { return cudaMallocHost(at, n); }, "host", bytes,
                  &pinned_);
  }

  // CUDA's priorities are numbers: the least one is 0, the highest one is negative.
  Stream MakeStream(Priority priority) override {
    Use();
    int least = 0, highest = 0;
    Check(cudaDeviceGetStreamPriorityRange(&least, &highest));
    const int number = priority == Priority::kLow    ? least
                       : priority == Priority::kHigh ? highest
                                                     : (least + highest) / 2;
    cudaStream_t stream = nullptr;
    Check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, number));
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
  // Errors from launches are detected here.
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
    cudaGetLastError();  // otherwise it would be reported again as if a launch had failed
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
  // CUDA's runtime repeats bytes, not words: copying doubles what is already there.
  void Fill(void* at, uint32_t word, int64_t words, Stream stream) override {
    if (words == 0) return;
    Result<std::byte*> pinned = TakePinned(sizeof word);
    if (!pinned.ok()) return;
    *reinterpret_cast<uint32_t*>(*pinned) = word;
    Copy(at, *pinned, sizeof word, stream);
    auto* bytes = static_cast<std::byte*>(at);
    for (int64_t done = 1; done < words; done *= 2)
      Copy(bytes + done * 4, at, std::min(done, words - done) * 4, stream);
  }

  // Asking for a kernel's attributes loads it (CUDA Programming Guide, "Lazy Loading").
  void LoadKernels() override {
    Use();
    cudaFuncAttributes attributes;
    for (const auto* each = kernels::cuda::Launchable::first(); each != nullptr;
         each = each->next())
      if (!Check(cudaFuncGetAttributes(&attributes, each->kernel()))) return;
  }

  GemmMachine machine() override {
    Use();
    cudaDeviceProp gpu = {};
    Check(cudaGetDeviceProperties(&gpu, gpu_));
    return {.gpu = fmt::format("{}, {} multiprocessors, sm_{}{}", gpu.name, gpu.multiProcessorCount,
                               gpu.major, gpu.minor),
            .library = static_cast<int64_t>(cublasLtGetVersion())};
  }
  void BeginProducts(std::byte* workspace) override {
    Use();
    int all = 0;
    Check(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, gpu_));
    const int32_t left = experiments_.spare > 0 ? std::max(1, all - experiments_.spare) : 0;
    products_ = std::make_unique<LtProducts>(experiments_, left);
    Keep(products_->Begin(workspace));
  }
  std::vector<GemmAlgorithm> Algorithms(const kernels::MatmulShape& shape, int most) override {
    Use();
    return status().ok() ? products_->Algorithms(shape, most) : std::vector<GemmAlgorithm>();
  }
  PreparedProduct Prepare(const kernels::MatmulShape& shape, const GemmAlgorithm* algorithm,
                          const kernels::MatmulArgs& dead, Stream stream) override {
    Use();
    if (!status().ok()) return {};
    Result<PreparedProduct> product =
        products_->Prepare(shape, algorithm, dead, static_cast<cudaStream_t>(stream));
    Keep(product.status());
    return product.ok() ? *product : PreparedProduct{};
  }
  void Multiply(int product, const kernels::MatmulArgs& args, Stream stream) override {
    Use();
    if (status().ok()) Keep(products_->Multiply(product, args, static_cast<cudaStream_t>(stream)));
  }

  Status status() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }

 private:
  void Keep(const Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = status;
  }
  bool Check(cudaError_t error) {
    if (error == cudaSuccess) return true;
    Keep(Status::Failed(fmt::format("CUDA: {}", cudaGetErrorString(error))));
    return false;
  }
  template <typename Allocate>
  Result<std::byte*> TakeBy(const Allocate& allocate, const char* whose, int64_t bytes,
                            std::vector<void*>* taken) {
    Use();
    void* memory = nullptr;
    const cudaError_t error = allocate(&memory, static_cast<size_t>(bytes));
    if (error != cudaSuccess) {
      Keep(Status::Invalid(fmt::format("{} bytes more of the {}'s memory: {}", bytes, whose,
                                       cudaGetErrorString(error))));
      return status();
    }
    std::lock_guard<std::mutex> lock(mutex_);
    taken->push_back(memory);
    return static_cast<std::byte*>(memory);
  }

  const int gpu_;
  const CudaExperiments experiments_;
  mutable std::mutex mutex_;  // of the following, except products
  Status status_;
  std::vector<void*> memory_, pinned_;
  int64_t bytes_ = 0;  // of memory_
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  std::unique_ptr<LtProducts> products_;  // the compute thread's
};

}  // namespace

Result<std::vector<uint64_t>> FindGpus() {
  int count = 0;  // CUDA does not set it on failure
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

void UsedGpus::Add(int gpu) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!used_.insert(gpu).second) return;
  for (const int other : used_) {
    if (other == gpu) continue;
    for (const auto& [from, to] : {std::pair{gpu, other}, std::pair{other, gpu}}) {
      UseGpu(from);
      cudaDeviceEnablePeerAccess(to, 0);  // where it cannot, copies pass through the host
    }
  }
  cudaGetLastError();  // otherwise it would be reported again as if a launch had failed
}

std::unique_ptr<CudaDriver> MakeCudaDriver(int gpu, const CudaExperiments& experiments) {
  return std::make_unique<RealCuda>(gpu, experiments);
}

}  // namespace pp
