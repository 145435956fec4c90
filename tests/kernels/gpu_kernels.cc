// The kernels, and cuBLASLt's products, on a real GPU: first the cases of the CPU's own tests
// (kernel_cases.h), then how fast they are at the sizes of GPT-2 and LLaMA (gpu_speed.h).
//
//   gpu_kernels device           what it is, and the versions of CUDA, lines "NAME: VALUE"
//   gpu_kernels cases [[!|=]TEXT]
//                                those with the text in their names, without it, or of that name, a
//                                line each:
//                                NAME, ok or WRONG, the worst error in tolerances; for products
//                                a line for each that says which algorithm computes it
//   gpu_kernels ceilings         of memory and of tensor cores, as the first lines of
//   gpu_kernels speed            a line each: NAME, microseconds, GB/s or TFLOP/s, % of the ceiling
//
// The cases' memory, including their stack, is pinned host memory, which the GPU accesses at the
// same addresses: the program's own `new` takes it from one block, and never frees it.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <new>
#include <string>
#include <string_view>

#include "kernels/round.h"
#include "kernels/workspace.h"
#include "runtime/device/cuda/cuda_driver.h"
#include "runtime/device/cuda/products.h"
#include "tests/kernels/cuda_table.h"
#include "tests/kernels/gpu_speed.h"
#include "tests/kernels/kernel_cases.h"

namespace {

constexpr size_t kSharedBytes = size_t{6} << 30, kStackBytes = size_t{64} << 20;
char* shared = nullptr;
std::atomic<size_t> taken = 0;

void* TakeShared(size_t bytes) {
  const size_t at = taken.fetch_add((bytes + 255) / 256 * 256);
  return at + bytes <= kSharedBytes ? shared + at : nullptr;
}
bool IsShared(const void* at) { return at >= shared && at < shared + kSharedBytes; }

}  // namespace

void* operator new(size_t bytes) {
  void* memory = shared != nullptr ? TakeShared(bytes) : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  if (shared == nullptr || !IsShared(memory)) std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace pp::kernels {

void FinishKernel() {
  const cudaError_t launched = cudaGetLastError(), done = cudaDeviceSynchronize();
  const cudaError_t error = launched != cudaSuccess ? launched : done;
  if (error == cudaSuccess) return;
  fmt::print("CUDA: {}\n", cudaGetErrorString(error));
  std::fflush(stdout);
  std::_Exit(1);  // nothing works any more
}

namespace {

// Which algorithm computes each product of a case, and what goes wrong.
std::vector<std::string> notes;
void Note(const std::string& note) {
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
}

// Those of a driver, which is replaced once it has failed.
struct Gpu {
  std::unique_ptr<CudaDriver> driver = MakeCudaDriver(0);
  static constexpr int64_t kDeadBytes = int64_t{4} << 30;
  CudaProducts products{{.driver = driver.get(), .dead = Dead(), .note = Note}};

  std::span<std::byte> Dead() {
    const Result<std::byte*> taken = driver->Allocate(cuda::kProductBytes + kDeadBytes);
    if (taken.ok()) {
      driver->BeginProducts(*taken);
      return {*taken + cuda::kProductBytes, kDeadBytes};
    }
    fmt::print("{}\n", taken.status().message());
    std::fflush(stdout);
    std::_Exit(1);
  }
};

Gpu& TheGpu() {
  static std::unique_ptr<Gpu> gpu;
  if (!gpu || !gpu->driver->status().ok()) gpu = std::make_unique<Gpu>();
  return *gpu;
}

void Product(const MatmulRunArgs& run) {
  Gpu& gpu = TheGpu();
  CudaProducts& products = gpu.products;
  const bool fused = run.shape.epilogue != Epilogue::kNone && products.Fuses(run.shape);
  RunProduct(run, fused, [&](const MatmulShape& shape, const MatmulArgs& args) {
    const int product = products.Prepare(shape);
    Note(fmt::format("'{}': {}", ToText(shape), products.text(product)));
    products.Multiply(product, args);
  });
  if (!gpu.driver->status().ok())
    Note(fmt::format("'{}': {}", ToText(run.shape), gpu.driver->status().message()));
}

// Whether the kernels compute it; prints a line, and one for each note.
bool IsRight(const Case& test, const CpuKernels& kernels, const char* prefix) {
  notes.clear();
  const Comparison one = test.run(kernels);
  const double worst = WorstError(one);
  const bool same = SameBits(test.run(kernels).actual, one.actual), ok = worst <= 1 && same;
  fmt::print("{:<40} {} {:.2f}{}\n", prefix + test.name, ok ? "ok" : "WRONG", worst,
             same ? "" : ", other bits the second time");
  if (!ok) {
    const size_t i = WorstElement(one);
    fmt::print("  element {} of {}: {}, not {}, at most {} off\n", i, one.actual.size(),
               one.actual[i], one.expected[i], one.tolerance[i]);
  }
  for (const std::string& note : notes) fmt::print("  {}\n", note);
  std::fflush(stdout);
  return ok;
}

// Whether `which` takes a case: TEXT is in its name, !TEXT is not, =TEXT is its name.
bool Takes(std::string_view which, std::string_view name) {
  if (which.starts_with('=')) return name == which.substr(1);
  if (which.starts_with('!')) return name.find(which.substr(1)) == name.npos;
  return name.find(which) != name.npos;
}

// Products are cuBLASLt's, then the plain kernel's.
int Cases(std::string_view which) {
  const CpuKernels plain = CudaKernels();
  CpuKernels kernels = plain;
  kernels.MatmulRun = Product;
  kernels.products = CpuKernels::Products::kRounded;
  int wrong = 0;
  for (const auto& cases : {KernelCases(), CudaCases()})
    for (const Case& test : cases) {
      if (!Takes(which, test.name)) continue;
      wrong += IsRight(test, kernels, "") ? 0 : 1;
      if (test.name.find("matmul") != std::string::npos)
        wrong += IsRight(test, plain, "plain ") ? 0 : 1;
    }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace pp::kernels

// A version as CUDA encodes it: 1000 times the major one, 10 times the minor one.
std::string Version(int encoded) {
  return fmt::format("{}.{}", encoded / 1000, encoded % 1000 / 10);
}

int Describe() {
  cudaDeviceProp device{};
  int driver = 0, runtime = 0;
  for (const cudaError_t error : {cudaGetDeviceProperties(&device, 0),
                                  cudaDriverGetVersion(&driver), cudaRuntimeGetVersion(&runtime)}) {
    if (error == cudaSuccess) continue;
    fmt::print(stderr, "gpu_kernels: error: {}\n", cudaGetErrorString(error));
    return 1;
  }
  fmt::print("name: {}\nmemory_bytes: {}\nmultiprocessors: {}\nsm: {}{}\nl2_bytes: {}\n",
             device.name, device.totalGlobalMem, device.multiProcessorCount, device.major,
             device.minor, device.l2CacheSize);
  fmt::print("driver_cuda: {}\nruntime_cuda: {}\n", Version(driver), Version(runtime));
  return 0;
}

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  static const std::string which = argc > 2 ? argv[2] : "";
  constexpr std::string_view kAlone[] = {"device", "ceilings", "speed"};
  const bool alone = std::count(std::begin(kAlone), std::end(kAlone), what) > 0;
  if (argc > 3 || (what != "cases" && (argc > 2 || !alone))) {
    fmt::print(stderr, "gpu_kernels: error: device, cases [[!|=]TEXT], ceilings or speed\n");
    return 2;
  }
  if (const auto gpus = pp::FindGpus(); !gpus.ok()) {
    fmt::print(stderr, "gpu_kernels: error: {}\n", gpus.status().message());
    return 2;
  }
  if (what == "device") return Describe();
  if (what == "ceilings") return pp::kernels::Speed(pp::kernels::Timed::kCeilings);
  if (what == "speed") return pp::kernels::Speed(pp::kernels::Timed::kAll);
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, kSharedBytes, cudaHostAllocPortable | cudaHostAllocMapped) !=
      cudaSuccess) {
    fmt::print(stderr, "gpu_kernels: error: no pinned memory\n");
    return 1;
  }
  shared = static_cast<char*>(memory);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, TakeShared(kStackBytes), kStackBytes);
  pthread_t thread;
  const auto run = [](void*) -> void* {
    const int status = pp::kernels::Cases(which);
    std::fflush(stdout);
    std::_Exit(status);  // whoever joined the thread would wait in its stack, a device's memory
  };
  if (pthread_create(&thread, &attributes, run, nullptr) != 0) return 1;
  while (true) pause();
}
