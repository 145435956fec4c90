// The kernels, and cuBLASLt's products, on a real GPU: first the cases of the CPU's own tests
// (kernel_cases.h), then how fast they are at GPT-2's sizes.
//
//   gpu_kernels device           what it is
//   gpu_kernels cases [[!]TEXT]  those with the text in their names, or without it, a line each:
//                                NAME, ok or WRONG, the worst error in tolerances; for products
//                                a line for each that says which algorithm computes it
//   gpu_kernels speed            a line each: NAME, microseconds, GB/s or TFLOP/s
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
#include <new>
#include <string>

#include "kernels/round.h"
#include "kernels/workspace.h"
#include "runtime/device/cuda/cuda_driver.h"
#include "runtime/device/cuda/products.h"
#include "tests/cuda_table.h"
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
  for (const std::string& note : notes) fmt::print("  {}\n", note);
  std::fflush(stdout);
  return ok;
}

// Runs the cases with `text` in their names; "!text": those without. Products are cuBLASLt's, then
// the plain kernel's.
int Cases(const std::string& text) {
  const CpuKernels plain = CudaKernels();
  CpuKernels kernels = plain;
  kernels.MatmulRun = Product;
  int wrong = 0;
  const bool without = text.starts_with("!");
  for (const auto& cases : {KernelCases(), CudaCases()})
    for (const Case& test : cases) {
      const bool has = test.name.find(text.substr(without)) != std::string::npos;
      if (has == without) continue;
      wrong += IsRight(test, kernels, "") ? 0 : 1;
      if (test.name.find("matmul") != std::string::npos)
        wrong += IsRight(test, plain, "plain ") ? 0 : 1;
    }
  return wrong == 0 ? 0 : 1;
}

float* Floats(int64_t n) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<size_t>(n) * sizeof(float)) != cudaSuccess) std::_Exit(1);
  cudaMemset(memory, 0, static_cast<size_t>(n) * sizeof(float));
  return static_cast<float*>(memory);
}
BFloat16* Halves(int64_t n) { return reinterpret_cast<BFloat16*>(Floats((n + 1) / 2)); }

// Prints the best of some runs. `work`: bytes, or operations.
void Time(const std::string& name, double work, const char* unit,
          const std::function<void()>& run) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  float best = 1e30f;
  for (int i = 0; i < 12; ++i) {
    cudaEventRecord(begin, nullptr);
    run();
    cudaEventRecord(end, nullptr);
    FinishKernel();
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    if (i >= 2) best = std::min(best, milliseconds);
  }
  const double scale = std::string(unit) == "GB/s" ? 1e9 : 1e12;
  fmt::print("{:<40} {:9.1f} us {:9.1f} {}\n", name, 1e3 * best, work / (1e-3 * best) / scale,
             unit);
  std::fflush(stdout);
}

void TimeProduct(const char* name, const MatmulShape& shape, const MatmulArgs& args) {
  CudaProducts& products = TheGpu().products;
  if (shape.epilogue != Epilogue::kNone && !products.Fuses(shape))
    return fmt::print("cuBLASLt has no product '{}'\n", ToText(shape));
  const int id = products.Prepare(shape);
  Time(fmt::format("product {} {} x {} x {}", name, shape.m, shape.n, shape.k),
       2.0 * static_cast<double>(shape.m * shape.n * shape.k), "TFLOP/s",
       [&] { products.Multiply(id, args); });
  fmt::print("  '{}': {}\n", ToText(shape), products.text(id));
}

void TimeProducts(int64_t rows, int64_t width) {
  const int64_t wide = 4 * width;
  BFloat16 *x = Halves(rows * wide), *y = Halves(rows * wide), *z = Halves(rows * wide);
  BFloat16* w = Halves(width * wide);
  float* dw = Floats(width * wide);
  TimeProduct("forward", {.m = rows, .n = wide, .k = width, .numbers = MatmulNumbers::kBf16},
              {.a = x, .b = w, .c = y});
  TimeProduct("forward with GELU",
              {.m = rows,
               .n = wide,
               .k = width,
               .numbers = MatmulNumbers::kBf16,
               .epilogue = Epilogue::kGelu},
              {.a = x, .b = w, .c = y, .aux = z});
  TimeProduct("input gradient with GELU",
              {.m = rows,
               .n = wide,
               .k = width,
               .operands = Operands::kNT,
               .numbers = MatmulNumbers::kBf16,
               .epilogue = Epilogue::kGeluBackward},
              {.a = x, .b = w, .c = y, .aux = z});
  TimeProduct("input gradient",
              {.m = rows,
               .n = width,
               .k = wide,
               .operands = Operands::kNT,
               .numbers = MatmulNumbers::kBf16},
              {.a = y, .b = w, .c = x});
  TimeProduct("weight gradient",
              {.m = width,
               .n = wide,
               .k = rows,
               .operands = Operands::kTN,
               .update = Update::kAdd,
               .numbers = MatmulNumbers::kBf16Sum},
              {.a = x, .b = y, .c = dw});
}

// For a vocabulary, and for one that may suit cuBLASLt better.
void TimeHead(int64_t rows, int64_t width) {
  const int64_t stride = 50304;
  BFloat16 *x = Halves(rows * width), *logits = Halves(rows * stride), *w = Halves(stride * width);
  float* dw = Floats(stride * width);
  for (const int64_t vocabulary : {int64_t{50257}, stride}) {
    TimeProduct("head forward",
                {.m = rows,
                 .n = vocabulary,
                 .k = width,
                 .operands = Operands::kNT,
                 .ldc = stride,
                 .numbers = MatmulNumbers::kBf16},
                {.a = x, .b = w, .c = logits});
    TimeProduct(
        "head input gradient",
        {.m = rows, .n = width, .k = vocabulary, .lda = stride, .numbers = MatmulNumbers::kBf16},
        {.a = logits, .b = w, .c = x});
    TimeProduct("head weight gradient",
                {.m = vocabulary,
                 .n = width,
                 .k = rows,
                 .operands = Operands::kTN,
                 .update = Update::kAdd,
                 .lda = stride,
                 .numbers = MatmulNumbers::kBf16Sum},
                {.a = logits, .b = x, .c = dw});
  }
}

int Speed() {
  const int64_t batch = 16, tokens = 1024, heads = 12, dim = 64, width = heads * dim;
  const int64_t rows = batch * tokens, vocabulary = 50257, stride = 50304;
  const double half = static_cast<double>(rows * width) * 2;
  BFloat16 *x = Halves(rows * 4 * width), *y = Halves(rows * 4 * width), *z = Halves(rows * width);
  float *gamma = Floats(4 * width), *beta = Floats(width), *mean = Floats(rows),
        *rstd = Floats(rows);
  float* scratch = Floats(std::max(NormScratchFloats(4 * width), BiasScratchFloats(4 * width)));
  Time("copy", 2 * half, "GB/s", [&] {
    cudaMemcpyAsync(y, x, static_cast<size_t>(half), cudaMemcpyDeviceToDevice, nullptr);
  });
  Time("layer norm forward", 2 * half, "GB/s", [&] {
    cuda::LayerNormForward<BFloat16>({rows, width, x, gamma, beta, y, mean, rstd}, nullptr);
  });
  Time("layer norm backward", 4 * half, "GB/s", [&] {
    cuda::LayerNormBackward<BFloat16>({.rows = rows,
                                       .channels = width,
                                       .dy = y,
                                       .x = x,
                                       .gamma = gamma,
                                       .mean = mean,
                                       .rstd = rstd,
                                       .dx = z,
                                       .add = z,
                                       .dgamma = gamma,
                                       .dbeta = beta,
                                       .scratch = scratch},
                                      nullptr);
  });
  Time("gelu forward", 8 * half, "GB/s", [&] {
    cuda::GeluForward<BFloat16>({rows * 4 * width, x, y}, nullptr);
  });
  Time("residual with dropout", 3 * half, "GB/s", [&] {
    cuda::Residual<BFloat16>({{0, rows * width, tokens * width}, x, y, z, {1, 2, 3, 0.1f}},
                             nullptr);
  });
  const BiasTensor<BFloat16> bias = {4 * width, x, gamma};
  Time("bias gradient", 4 * half, "GB/s", [&] {
    cuda::BiasGradient<BFloat16>({.rows = rows, .tensors = {&bias, 1}, .scratch = scratch},
                                 nullptr);
  });
  BFloat16* logits = Halves(rows / 4 * stride);
  int32_t* target = reinterpret_cast<int32_t*>(Floats(rows));
  const double of_logits = static_cast<double>(rows / 4 * vocabulary) * 2;
  auto *losses = reinterpret_cast<double*>(scratch), *loss = reinterpret_cast<double*>(mean);
  Time("cross entropy", 2 * of_logits, "GB/s", [&] {
    cuda::CrossEntropyForward<BFloat16>(
        {rows / 4, vocabulary, stride, logits, target, losses, loss, logits}, nullptr);
  });
  const int64_t parameters = int64_t{124} << 20;
  float *w = Floats(parameters), *m = Floats(parameters), *v = Floats(parameters);
  const AdamWTensor tensor = {
      .n = parameters, .weights = w, .m = m, .v = v, .gradient = m, .rounded = Halves(parameters)};
  Time("adamw, weights also in bf16", 30.0 * static_cast<double>(parameters), "GB/s", [&] {
    cuda::AdamW({.tensors = {&tensor, 1}, .rounding = Rounding::kBFloat16}, nullptr);
  });
  const AttentionShape shape = {batch, tokens, heads, dim, heads};
  const double flops = 2.0 * static_cast<double>(batch * heads * tokens * tokens * dim);
  float* lse = Floats(batch * heads * tokens);
  float* dots = Floats(static_cast<int64_t>(cuda::AttentionScratchBytes(shape)) / 4 + 1);
  Time("attention forward, causal", flops, "TFLOP/s", [&] {
    cuda::AttentionForward<BFloat16>({.shape = shape, .qkv = x, .out = z, .lse = lse}, nullptr);
  });
  Time("attention backward, causal", 2.5 * flops, "TFLOP/s", [&] {
    cuda::AttentionBackward<BFloat16>(
        {.shape = shape, .qkv = x, .out = z, .lse = lse, .dout = z, .dqkv = y, .scratch = dots},
        nullptr);
  });
  TimeProducts(rows, width);
  TimeProducts(rows, 1600);
  TimeHead(rows, width);
  return 0;
}

}  // namespace
}  // namespace pp::kernels

int Describe() {
  cudaDeviceProp device{};
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) return 1;
  fmt::print("{}, {:.0f} GB, {} multiprocessors, sm_{}{}\n", device.name,
             static_cast<double>(device.totalGlobalMem) / 1e9, device.multiProcessorCount,
             device.major, device.minor);
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
