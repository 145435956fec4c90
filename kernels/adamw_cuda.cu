// AdamW on a GPU: a thread takes a few elements far apart, so that neighbouring threads
// read neighbouring addresses. Bound by memory: 28 bytes an element.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/adamw.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;

__global__ void Update(AdamWArgs a) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < a.n; i += stride) {
    const float g = a.gradient_scale * a.gradient[i];
    const float m = a.beta1 * a.m[i] + (1 - a.beta1) * g;
    const float v = a.beta2 * a.v[i] + (1 - a.beta2) * g * g;
    const float step = (m / a.correction1) / (sqrtf(v / a.correction2) + a.epsilon);
    a.m[i] = m;
    a.v[i] = v;
    a.weights[i] -= a.learning_rate * (step + a.decay * a.weights[i]);
  }
}

}  // namespace

void AdamW(const AdamWArgs& args, void* stream) {
  if (args.n == 0) return;
  const int64_t blocks = std::min(kMaxBlocks, (args.n + kThreads - 1) / kThreads);
  Update<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(args);
}

}  // namespace pp::kernels::cuda
