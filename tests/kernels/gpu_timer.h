// Times work on a real GPU such that the figure is that of a training step, not of a benchmark:
// operands are random numbers (a product of zeros takes less power, and so is faster); they rotate
// among several sets that together are several times the L2 cache; many launches run between two
// events; and the median of several rounds counts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pp {

enum class Unit { kGigabytes, kTeraflops };  // per second

enum class Numbers { kNormal, kPositive, kTokens };

// Tokens are below this.
inline constexpr int32_t kVocabulary = 50257;

// `sets` arrays of n numbers each, in the GPU's memory.
template <typename T>
class Operand {
 public:
  Operand(int sets, int64_t n, Numbers numbers = Numbers::kNormal);
  ~Operand() { cudaFree(at_); }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  T* operator[](int i) const { return at_ + i % sets_ * stride_; }

 private:
  int sets_;
  int64_t stride_;  // n, and up to 256 bytes
  T* at_ = nullptr;
};

class GpuTimer {
 public:
  GpuTimer();

  // How many sets of operands of that many bytes to rotate among.
  int Sets(double bytes) const;

  // Prints the name, the microseconds of one launch, its bytes or operations per second, and their
  // share of the ceiling, which is what was timed first in this unit. run(i) launches it on set i,
  // which counts up.
  void Time(const std::string& name, double work, Unit unit, const std::function<void(int)>& run);

 private:
  double Seconds(int launches, const std::function<void(int)>& run);  // of one
  double Median(const std::function<void(int)>& run);

  int64_t cache_ = 0;  // bytes of L2
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  int next_ = 0;  // set
  double ceilings_[2] = {};
};

}  // namespace pp
