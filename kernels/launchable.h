// The kernels for a GPU that a program can launch. CUDA loads a kernel at its first use, and may
// wait for all that runs on the GPU then: who cannot wait loads them all before.
#pragma once

namespace pp::kernels::cuda {

// In a list of all, which is complete before main.
class Launchable {
 public:
  explicit Launchable(const void* kernel) : kernel_(kernel), next_(first_) { first_ = this; }
  Launchable(const Launchable&) = delete;

  static const Launchable* first() { return first_; }
  const Launchable* next() const { return next_; }  // null: this is the last
  const void* kernel() const { return kernel_; }

 private:
  static inline constinit const Launchable* first_ = nullptr;

  const void* const kernel_;
  const Launchable* const next_;
};

// Launch (block.h) names the one of its kernel, so that there is one for each.
template <auto kKernel>
inline const Launchable kLaunchable{reinterpret_cast<const void*>(kKernel)};

}  // namespace pp::kernels::cuda
