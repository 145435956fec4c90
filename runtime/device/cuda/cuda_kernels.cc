#include "runtime/device/cuda/cuda_kernels.h"

#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/round.h"
#include "kernels/workspace.h"
#include "runtime/device/cuda/products.h"
#include "runtime/device/first_keys.h"
#include "runtime/device/rope_angles.h"
#include "schema/model/workspace.h"

namespace pp {
namespace {

namespace cuda = kernels::cuda;

class CudaKernels : public Kernels {
 public:
  CudaKernels(CudaDriver* driver, CudaDriver::Stream stream, const Job& job, std::byte* workspace,
              const CudaKernelsOptions& options)
      : driver_(*driver),
        stream_(stream),
        most_ahead_(options.most_ahead),
        products_({.driver = driver,
                   .stream = stream,
                   .gemms = options.gemms,
                   .fuses_gelu = options.fuses_gelu,
                   .dead = options.dead,
                   .note = options.note}),
        rounding_(RoundingOf(job.dtype, options.stochastic_rounding)) {
    PP_CHECK(job.backend == DeviceKind::kCuda);
    const Workspace layout = WorkspaceOf(job);
    scratch_ = workspace + layout.kernels;
    angles_ = workspace + layout.angles;
    const auto address = reinterpret_cast<uintptr_t>(workspace + layout.products);
    auto* products = reinterpret_cast<std::byte*>((address + cuda::kProductAlign - 1) /
                                                  cuda::kProductAlign * cuda::kProductAlign);
    driver_.BeginProducts(products);
    if (options.second != nullptr)
      second_ = {.stream = options.second,
                 .fork = driver_.MakeEvent(),
                 .join = driver_.MakeEvent(),
                 .scratch = products + cuda::kProductBytes};
    const std::vector<float> angles = RopeAngles(job);
    CopyIn(angles, angles_);
    sines_ = angles_ + angles.size() / 2 * sizeof(float);
    const std::vector<int32_t> keys = FirstKeys(job);
    if (!keys.empty()) first_keys_ = workspace + layout.first_keys;
    CopyIn(keys, first_keys_);
  }

#define PP_KERNEL(Name) \
  void Name(const kernels::Name##Args& args) override { cuda::Name(args, Next()); }
#define PP_KERNEL_OF(N, Name)                                       \
  void Name(const kernels::Name##Args<kernels::N>& args) override { \
    cuda::Name(WithScratch(args), Next());                          \
  }
#define PP_KERNEL_OF_ALL(Name) PP_ACTIVATIONS(PP_KERNEL_OF, Name)
  PP_PLAIN_KERNELS(PP_KERNEL)
  PP_ACTIVATION_KERNELS(PP_KERNEL_OF_ALL)
#undef PP_KERNEL
#undef PP_KERNEL_OF
#undef PP_KERNEL_OF_ALL

  // A file of algorithms decides it by listing the product with its epilogue, or without it.
  bool Fuses(const kernels::MatmulShape& shape) override { return products_.Fuses(shape); }
  int Prepare(const kernels::MatmulShape& shape) override { return products_.Prepare(shape); }
  // Weights and biases come rounded.
  void Multiply(int product, const kernels::MatmulArgs& args) override {
    products_.Multiply(product, args, Next());
  }

  bool has_second_queue() const override { return second_.stream != nullptr; }
  void MultiplyBeside(int product, const kernels::MatmulArgs& args) override {
    driver_.Record(second_.fork, Next());
    driver_.WaitFor(second_.stream, second_.fork);
    kernels::MatmulArgs own = args;
    own.scratch = second_.scratch;
    products_.Multiply(product, own, second_.stream);
    second_.forked = true;
  }
  void Join() override {
    if (!std::exchange(second_.forked, false)) return;
    driver_.Record(second_.join, second_.stream);
    driver_.WaitFor(stream_, second_.join);
  }

  kernels::Rounding rounding() const override { return rounding_; }
  void Round(const kernels::RoundArgs& args) override { cuda::Round(args, Next()); }

  void Copy(const void* from, int64_t bytes, void* to) override {
    driver_.Copy(to, from, bytes, Next());
  }

  Angles angles() const override {
    return {reinterpret_cast<const float*>(angles_), reinterpret_cast<const float*>(sines_)};
  }
  const int32_t* first_keys() const override {
    return reinterpret_cast<const int32_t*>(first_keys_);
  }

 private:
  // The stream of the next call.
  CudaDriver::Stream Next() {
    if (most_ahead_ > 0 && ++calls_ * kMarks % most_ahead_ == 0) HoldBack();
    return stream_;
  }
  void HoldBack() {
    Mark& mark = marks_[calls_ * kMarks / most_ahead_ % kMarks];
    if (mark.event == nullptr) mark.event = driver_.MakeEvent();
    while (mark.recorded && !driver_.Reached(mark.event) && driver_.status().ok())
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    driver_.Record(mark.event, stream_);
    mark.recorded = true;
  }

  template <typename T>
  void CopyIn(const std::vector<T>& numbers, std::byte* to) {
    const auto bytes = static_cast<int64_t>(numbers.size() * sizeof(T));
    if (bytes == 0) return;
    Result<std::byte*> pinned = driver_.TakePinned(bytes);
    if (!pinned.ok()) throw std::bad_alloc();
    std::memcpy(*pinned, numbers.data(), bytes);
    Copy(*pinned, bytes, to);
  }

  static kernels::Rounding RoundingOf(Dtype dtype, bool stochastic) {
    switch (dtype) {
      case Dtype::kFp32:
        return kernels::Rounding::kNone;
      case Dtype::kBf16:
        return stochastic ? kernels::Rounding::kStochasticBFloat16 : kernels::Rounding::kBFloat16;
      case Dtype::kFp16:
        return kernels::Rounding::kFloat16;
    }
    PP_CHECK(false);
  }

  template <typename Args>
  Args WithScratch(Args args) {
    if constexpr (requires { args.scratch; })
      args.scratch = reinterpret_cast<decltype(args.scratch)>(scratch_);
    return args;
  }

  // Of the products beside all else.
  struct Second {
    CudaDriver::Stream stream = nullptr;  // null: none
    CudaDriver::Event fork = nullptr, join = nullptr;
    std::byte* scratch = nullptr;
    bool forked = false;  // since the last Join
  };

  // Of the stream after every most_ahead / kMarks calls.
  static constexpr int64_t kMarks = 4;
  struct Mark {
    CudaDriver::Event event = nullptr;
    bool recorded = false;
  };

  CudaDriver& driver_;
  const CudaDriver::Stream stream_;
  const int64_t most_ahead_;
  int64_t calls_ = 0;
  Mark marks_[kMarks];
  Second second_;
  CudaProducts products_;
  const kernels::Rounding rounding_;  // of weights
  std::byte *scratch_ = nullptr, *angles_ = nullptr, *sines_ = nullptr, *first_keys_ = nullptr;
};

}  // namespace

std::unique_ptr<Kernels> MakeCudaKernels(CudaDriver* driver, CudaDriver::Stream stream,
                                         const Job& job, std::byte* workspace,
                                         const CudaKernelsOptions& options) {
  return std::make_unique<CudaKernels>(driver, stream, job, workspace, options);
}

}  // namespace pp
