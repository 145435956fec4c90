#include "runtime/device/cuda/cuda_kernels.h"

#include <algorithm>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "kernels/round.h"
#include "runtime/device/attention_shape.h"
#include "runtime/device/rope_angles.h"

namespace pp {
namespace {

namespace cuda = kernels::cuda;

class CudaKernels : public Kernels {
 public:
  CudaKernels(CudaDriver* driver, CudaDriver::Stream stream, const Job& job,
              const CudaKernelsOptions& options)
      : driver_(*driver),
        stream_(stream),
        gemms_(options.gemms),
        rounding_(RoundingOf(job.dtype, options.stochastic_rounding)) {
    int64_t floats = 0;
    for (int stage = 0; stage < job.stages(); ++stage) {
      const StageLayout layout = LayoutStage(job, stage);
      floats = std::max(floats, kernels::BiasScratchFloats(BiasElements(layout)));
      for (const StageOperator& placed : layout.operators) {
        const Operator& op = placed.op;
        if (op.kind == OperatorKind::kNorm)
          floats = std::max(floats, kernels::NormScratchFloats(op.in));
        if (op.kind == OperatorKind::kRope && angles_ == nullptr)
          TakeAngles(RopeTurns(op.rope, op.head_dim), job.sequence_length);
      }
    }
    const auto attention = static_cast<int64_t>(cuda::AttentionScratchBytes(AttentionShapeOf(job)));
    scratch_ = Allocate(std::max(floats * 4, attention));
  }

#define PP_KERNEL(Name) \
  void Name(const kernels::Name##Args& args) override { cuda::Name(WithRounded(args), stream_); }
#define PP_KERNEL_OF(N, Name)                                       \
  void Name(const kernels::Name##Args<kernels::N>& args) override { \
    cuda::Name(WithScratch(args), stream_);                         \
  }
#define PP_KERNEL_OF_ALL(Name) PP_ACTIVATIONS(PP_KERNEL_OF, Name)
  PP_PLAIN_KERNELS(PP_KERNEL)
  PP_ACTIVATION_KERNELS(PP_KERNEL_OF_ALL)
#undef PP_KERNEL
#undef PP_KERNEL_OF
#undef PP_KERNEL_OF_ALL

  int Prepare(const kernels::MatmulShape& shape) override {
    const int product = driver_.Prepare(shape, gemms_ != nullptr ? gemms_->Find(shape) : nullptr);
    shapes_.resize(std::max<size_t>(shapes_.size(), product + 1));
    shapes_[product] = shape;
    return product;
  }

  bool Fuses(const kernels::MatmulShape& shape) override {
    return FusesProduct(&driver_, shape, gemms_);
  }

  // The driver's products take operands of one type.
  void Multiply(int product, const kernels::MatmulArgs& args) override {
    const kernels::MatmulShape& shape = shapes_[product];
    kernels::MatmulArgs rounded = args;
    if (kernels::Rounds(shape.numbers)) {
      rounded.b = Rounded(static_cast<const float*>(args.b), kernels::NumbersOfB(shape));
      if (shape.bias == kernels::WithBias::kYes)
        rounded.bias = static_cast<const float*>(Rounded(args.bias, shape.n));
    }
    driver_.Multiply(product, rounded, stream_);
  }

  void ForgetWeights(const std::byte* weights, int64_t bytes) override {
    const auto* begin = reinterpret_cast<const float*>(weights);
    const auto end = rounded_.lower_bound({begin + bytes / 4, 0});
    for (auto each = rounded_.lower_bound({begin, 0}); each != end; ++each)
      each->second.fresh = false;
  }

  void Copy(const void* from, int64_t bytes, void* to) override {
    driver_.Copy(to, from, bytes, stream_);
  }

  void Angles(const std::vector<double>& turns, int64_t tokens, float* out) override {
    Copy(angles_, AngleBytes(turns, tokens), out);
  }

  int64_t bytes() const override { return bytes_; }

 private:
  struct RoundedWeights {
    std::byte* at = nullptr;
    bool fresh = false;
  };

  static int64_t AngleBytes(const std::vector<double>& turns, int64_t tokens) {
    return 2 * tokens * static_cast<int64_t>(turns.size() * sizeof(float));
  }
  // The same for all stages, and all steps.
  void TakeAngles(const std::vector<double>& turns, int64_t tokens) {
    const int64_t bytes = AngleBytes(turns, tokens);
    Result<std::byte*> pinned = driver_.TakePinned(bytes);
    if (!pinned.ok()) throw std::bad_alloc();
    RopeAngles(turns, tokens, reinterpret_cast<float*>(*pinned));
    angles_ = Allocate(bytes);
    Copy(*pinned, bytes, angles_);
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

  // Once per step, whatever the number of micro-batches, unless AdamW has done it.
  const void* Rounded(const float* weights, int64_t n) {
    RoundedWeights& rounded = rounded_[{weights, n}];
    if (rounded.at == nullptr) {
      const int64_t bytes = 2 * n;
      rounded.at = Took(driver_.AllocateLate(bytes, stream_), bytes);
    }
    if (!rounded.fresh)
      cuda::Round({.n = n, .x = weights, .y = rounded.at, .rounding = rounding_}, stream_);
    rounded.fresh = true;
    return rounded.at;
  }
  // AdamW rounds the tensors that it updates completely and that products have used before. If it
  // updates a part (ZeRO), peers send the rest.
  kernels::AdamWArgs WithRounded(kernels::AdamWArgs args) {
    args.rounding = rounding_;
    stepped_.assign(args.tensors.begin(), args.tensors.end());
    for (kernels::AdamWTensor& tensor : stepped_) {
      const auto found = rounded_.find({tensor.weights, tensor.n});
      if (found == rounded_.end()) continue;
      tensor.rounded = found->second.at;
      found->second.fresh = true;
    }
    args.tensors = stepped_;
    return args;
  }
  template <typename Args>
  const Args& WithRounded(const Args& args) {
    return args;
  }

  std::byte* Allocate(int64_t bytes) { return Took(driver_.Allocate(bytes), bytes); }
  std::byte* Took(const Result<std::byte*>& taken, int64_t bytes) {
    if (!taken.ok()) throw std::bad_alloc();
    bytes_ += bytes;
    return *taken;
  }

  template <typename Args>
  Args WithScratch(Args args) {
    if constexpr (requires { args.scratch; })
      args.scratch = reinterpret_cast<decltype(args.scratch)>(scratch_);
    return args;
  }

  CudaDriver& driver_;
  const CudaDriver::Stream stream_;
  const GemmTable* const gemms_;
  const kernels::Rounding rounding_;          // of weights
  std::vector<kernels::MatmulShape> shapes_;  // by product
  int64_t bytes_ = 0;
  std::byte* scratch_ = nullptr;
  std::map<std::pair<const float*, int64_t>, RoundedWeights> rounded_;
  std::vector<kernels::AdamWTensor> stepped_;
  std::byte* angles_ = nullptr;
};

}  // namespace

std::unique_ptr<Kernels> MakeCudaKernels(CudaDriver* driver, CudaDriver::Stream stream,
                                         const Job& job, const CudaKernelsOptions& options) {
  return std::make_unique<CudaKernels>(driver, stream, job, options);
}

// In fp32, which serves for comparison, accuracy is not left to cuBLASLt's tanh, which guarantees
// nothing. A row of aux must have a multiple of eight elements.
bool FusesProduct(CudaDriver* driver, const kernels::MatmulShape& shape, const GemmTable* gemms) {
  PP_CHECK(shape.epilogue != kernels::Epilogue::kNone);
  kernels::MatmulShape plain = shape;
  plain.epilogue = kernels::Epilogue::kNone;
  if (gemms != nullptr && gemms->Find(shape) == nullptr && gemms->Find(plain) != nullptr)
    return false;
  return kernels::Rounds(shape.numbers) && Whole(shape).ldc % 8 == 0 &&
         !driver->Algorithms(shape, 1).empty();
}

}  // namespace pp
