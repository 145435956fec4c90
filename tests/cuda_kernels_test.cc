// Every kernel for a GPU against the same plain versions in doubles as the CPU's (kernels_test.cc),
// from its own source, on an emulation of the block model, in several orders of warps and blocks.
#include <catch2/catch.hpp>
#include <stdexcept>

#include "kernels/block.h"
#include "tests/emulated_kernels.h"
#include "tests/kernel_cases.h"

namespace pp::kernels {
namespace {

TEST_CASE("a GPU's kernels compute what their headers say") {
  const CpuKernels kernels = EmulatedKernels();
  for (const Case& test : KernelCases()) {
    INFO(test.name);
    cuda::emulation::SetSeed(1);
    const Comparison one = test.run(kernels);
    CHECK(WorstError(one) <= 1);
    for (uint32_t seed : {2, 3}) {
      cuda::emulation::SetSeed(seed);
      CHECK(SameBits(test.run(kernels).actual, one.actual));
    }
  }
}

// Numbers go round: thread i gets that of thread i + 1.
enum class Barrier { kNo, kYes };
template <Barrier kBarrier>
void PassOn(const float* in, float* out) {
  float* shared = &cuda::Shared<float>();
  shared[cuda::Thread()] = in[cuda::Thread()];
  if (kBarrier == Barrier::kYes) cuda::SyncBlock();
  out[cuda::Thread()] = shared[(cuda::Thread() + 1) % cuda::Threads()];
}

template <Barrier kBarrier>
int WrongNumbers(uint32_t seed) {
  constexpr int kThreads = 128;
  Floats in = Numbers(kThreads, 1), out(kThreads);
  cuda::emulation::SetSeed(seed);
  cuda::Launch<PassOn<kBarrier>>({.threads = kThreads, .shared = kThreads * sizeof(float)}, nullptr,
                                 static_cast<const float*>(in.data()), out.data());
  int wrong = 0;
  for (int i = 0; i < kThreads; ++i) wrong += out[i] != in[(i + 1) % kThreads] ? 1 : 0;
  return wrong;
}

TEST_CASE("a missing barrier is found") {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    CHECK(WrongNumbers<Barrier::kYes>(seed) == 0);
    CHECK(WrongNumbers<Barrier::kNo>(seed) > 0);
  }
}

void EndsEarly() {
  if (cuda::Thread() >= 32) cuda::SyncBlock();
}
void HalfAWarp() {
  if (cuda::Lane() < 16) cuda::SyncWarp();
}
void DifferentInstructions() {
  if (cuda::Lane() < 16) return cuda::SyncWarp();
  cuda::ShuffleXor(1, 1);
}

TEST_CASE("a barrier that not all threads come to is found") {
  using Catch::Contains;
  CHECK_THROWS_WITH(cuda::Launch<EndsEarly>({.threads = 64}, nullptr),
                    Contains("ends where others"));
  CHECK_THROWS_WITH(cuda::Launch<HalfAWarp>({.threads = 32}, nullptr), Contains("lanes of a warp"));
  CHECK_THROWS_WITH(cuda::Launch<DifferentInstructions>({.threads = 32}, nullptr),
                    Contains("lanes of a warp"));
}

}  // namespace
}  // namespace pp::kernels
