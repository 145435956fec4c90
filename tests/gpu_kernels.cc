// The kernels, and cuBLASLt's products, on a real GPU: first the cases of the CPU's own tests
// (kernel_cases.h), then how fast they are at the sizes of GPT-2 and LLaMA (gpu_speed.h).
//
//   gpu_kernels device           what it is, and the versions of CUDA, lines "NAME: VALUE"
//   gpu_kernels cases [[!]TEXT]  those with the text in their names, or without it, a line each:
//                                NAME, ok or WRONG, the worst error in tolerances
//   gpu_kernels speed            a line each: NAME, microseconds, GB/s or TFLOP/s, % of the ceiling
//
// The cases' memory, including their stack, is pinned host memory, which the GPU accesses at the
// same addresses: the program's own `new` takes it from one block, and never frees it.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>

#include "kernels/round.h"
#include "runtime/device/cuda/cuda_driver.h"
#include "runtime/device/cuda/cuda_kernels.h"
#include "tests/cuda_table.h"
#include "tests/gpu_speed.h"
#include "tests/kernel_cases.h"

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

// A driver that has failed is replaced.
CudaDriver& Driver() {
  static std::unique_ptr<CudaDriver> driver;
  if (!driver || !driver->status().ok()) driver = MakeCudaDriver(0);
  return *driver;
}

// The kernels that replace an epilogue, if cuBLASLt has none for the shape.
template <TwoBytes N>
void Separately(const MatmulShape& shape, const MatmulArgs& args) {
  MatmulShape plain = shape;
  plain.epilogue = Epilogue::kNone;
  MatmulArgs to = args;
  const bool forward = shape.epilogue == Epilogue::kGelu;
  if (forward) to.c = args.aux;
  Driver().Multiply(Driver().Prepare(plain, nullptr), to, nullptr);
  const int64_t n = shape.m * shape.n;
  auto *aux = static_cast<N*>(args.aux), *c = static_cast<N*>(args.c);
  if (forward) cuda::GeluForward<N>({.n = n, .x = aux, .y = c}, nullptr);
  if (!forward) cuda::GeluBackward<N>({.n = n, .x = aux, .dy = c, .dx = c}, nullptr);
  fmt::print("cuBLASLt has no product '{}'\n", ToText(shape));
}

// As in cuda_kernels.cc: weights and biases are rounded first.
std::vector<uint16_t> Rounded(const MatmulShape& shape, const void* weights, int64_t n) {
  const bool brain = shape.numbers == MatmulNumbers::kBf16;
  std::vector<uint16_t> rounded(n);
  cuda::Round({.n = n,
               .x = static_cast<const float*>(weights),
               .y = rounded.data(),
               .rounding = brain ? Rounding::kBFloat16 : Rounding::kFloat16},
              nullptr);
  return rounded;
}

void Product(const MatmulRunArgs& run) {
  MatmulArgs args = run.args;
  const MatmulShape& shape = run.shape;
  std::vector<uint16_t> b, bias;
  if (Rounds(shape.numbers)) {
    b = Rounded(shape, args.b, NumbersOfB(shape));
    args.b = b.data();
    if (shape.bias == WithBias::kYes) bias = Rounded(shape, args.bias, shape.n);
    if (shape.bias == WithBias::kYes) args.bias = reinterpret_cast<const float*>(bias.data());
  }
  CudaDriver& driver = Driver();
  if (shape.epilogue != Epilogue::kNone && !FusesProduct(&driver, shape, nullptr)) {
    shape.numbers == MatmulNumbers::kBf16 ? Separately<BFloat16>(shape, args)
                                          : Separately<Float16>(shape, args);
  } else {
    driver.Multiply(driver.Prepare(shape, nullptr), args, nullptr);
  }
  FinishKernel();
  if (!driver.status().ok())
    fmt::print("product {} x {} x {}: {}\n", shape.m, shape.n, shape.k, driver.status().message());
}

// Runs the cases with `text` in their names; "!text": those without.
int Cases(const std::string& text) {
  CpuKernels kernels = CudaKernels();
  kernels.MatmulRun = Product;
  int wrong = 0;
  const bool without = text.starts_with("!");
  for (const auto& cases : {KernelCases(), CudaCases()})
    for (const Case& test : cases) {
      const bool has = std::string(test.name).find(text.substr(without)) != std::string::npos;
      if (has == without) continue;
      const Comparison one = test.run(kernels);
      const double worst = WorstError(one);
      const bool same = SameBits(test.run(kernels).actual, one.actual);
      const bool ok = worst <= 1 && same;
      wrong += ok ? 0 : 1;
      fmt::print("{:<40} {} {:.2f}{}\n", test.name, ok ? "ok" : "WRONG", worst,
                 same ? "" : ", other bits the second time");
      std::fflush(stdout);
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
  if (argc > 3 || (what != "cases" && (argc > 2 || (what != "speed" && what != "device")))) {
    fmt::print(stderr, "gpu_kernels: error: device, cases [[!]TEXT] or speed\n");
    return 2;
  }
  if (const auto gpus = pp::FindGpus(); !gpus.ok()) {
    fmt::print(stderr, "gpu_kernels: error: {}\n", gpus.status().message());
    return 2;
  }
  if (what == "device") return Describe();
  if (what == "speed") return pp::kernels::Speed();
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
