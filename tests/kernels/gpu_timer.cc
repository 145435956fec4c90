#include "tests/kernels/gpu_timer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <random>
#include <type_traits>

#include "kernels/numbers.h"
#include "tests/kernels/cuda_table.h"

namespace pp {
namespace {

constexpr int kRounds = 7, kMostLaunches = 500;
constexpr double kRoundSeconds = 0.01;
constexpr double kTimesTheCache = 4;

void Must(cudaError_t error) {
  if (error == cudaSuccess) return;
  fmt::print("CUDA: {}\n", cudaGetErrorString(error));
  std::fflush(stdout);
  std::_Exit(1);
}

template <typename T>
T Convert(float x) {
  if constexpr (std::is_same_v<T, kernels::BFloat16>) {
    return {static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16)};
  } else {
    return static_cast<T>(x);
  }
}

// Drawn once, and repeated by copies: drawing all that is timed would take longer than the timing.
constexpr int64_t kDrawn = 1 << 20;

template <typename T>
const std::vector<T>& Drawn(Numbers numbers) {
  static std::map<Numbers, std::vector<T>> made;
  std::vector<T>& drawn = made[numbers];
  if (!drawn.empty()) return drawn;
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int32_t> token(0, kVocabulary - 1);
  while (drawn.size() < kDrawn) {
    float x = numbers == Numbers::kTokens ? static_cast<float>(token(engine)) : normal(engine);
    if (numbers == Numbers::kPositive) x = std::fabs(x) + 0.1f;
    drawn.push_back(Convert<T>(x));
  }
  return drawn;
}

}  // namespace

template <typename T>
Operand<T>::Operand(int sets, int64_t n, Numbers numbers)
    : sets_(sets), stride_((n + 255) / 256 * 256) {
  const int64_t all = sets_ * stride_, block = std::min(all, kDrawn);
  void* taken = nullptr;
  Must(cudaMalloc(&taken, static_cast<size_t>(all) * sizeof(T)));
  at_ = static_cast<T*>(taken);
  Must(cudaMemcpy(at_, Drawn<T>(numbers).data(), block * sizeof(T), cudaMemcpyHostToDevice));
  for (int64_t done = block; done < all; done *= 2)
    Must(cudaMemcpy(at_ + done, at_, std::min(done, all - done) * sizeof(T),
                    cudaMemcpyDeviceToDevice));
}

template class Operand<float>;
template class Operand<double>;
template class Operand<int32_t>;
template class Operand<kernels::BFloat16>;

GpuTimer::GpuTimer() {
  cudaDeviceProp device{};
  Must(cudaGetDeviceProperties(&device, 0));
  cache_ = device.l2CacheSize;
  Must(cudaEventCreate(&begin_));
  Must(cudaEventCreate(&end_));
}

int GpuTimer::Sets(double bytes) const {
  return std::max(2, static_cast<int>(std::ceil(kTimesTheCache * cache_ / bytes)));
}

double GpuTimer::Seconds(int launches, const std::function<void(int)>& run) {
  Must(cudaEventRecord(begin_, nullptr));
  for (int i = 0; i < launches; ++i) run(next_++);
  Must(cudaEventRecord(end_, nullptr));
  kernels::FinishKernel();
  float milliseconds = 0;
  Must(cudaEventElapsedTime(&milliseconds, begin_, end_));
  return 1e-3 * milliseconds / launches;
}

double GpuTimer::Median(const std::function<void(int)>& run) {
  Seconds(2, run);  // warms up
  const double once = std::max(Seconds(4, run), 1e-7);
  const int launches = std::clamp(static_cast<int>(kRoundSeconds / once), 4, kMostLaunches);
  std::vector<double> rounds;
  for (int i = 0; i < kRounds; ++i) rounds.push_back(Seconds(launches, run));
  std::sort(rounds.begin(), rounds.end());
  return rounds[kRounds / 2];
}

void GpuTimer::Time(const std::string& name, double work, Unit unit,
                    const std::function<void(int)>& run) {
  const double seconds = Median(run), speed = work / seconds;
  const bool bytes = unit == Unit::kGigabytes;
  double& ceiling = ceilings_[static_cast<int>(unit)];
  if (ceiling == 0) ceiling = speed;
  fmt::print("{:<50} {:9.1f} us {:9.1f} {:<7} {:5.1f} %\n", name, 1e6 * seconds,
             speed / (bytes ? 1e9 : 1e12), bytes ? "GB/s" : "TFLOP/s", 100 * speed / ceiling);
  std::fflush(stdout);
}

}  // namespace pp
