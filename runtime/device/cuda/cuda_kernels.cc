#include "runtime/device/cuda/cuda_kernels.h"

#include <algorithm>
#include <new>
#include <vector>

#include "kernels/round.h"
#include "runtime/device/rope_angles.h"

namespace pp {
namespace {

namespace cuda = kernels::cuda;

class CudaKernels : public Kernels {
 public:
  CudaKernels(CudaDriver* driver, CudaDriver::Stream stream, const Job& job)
      : driver_(*driver), stream_(stream) {
    int64_t columns = 0, weights = 0;
    for (int stage = 0; stage < job.stages(); ++stage)
      for (const StageOperator& placed : LayoutStage(job, stage).operators) {
        const Operator& op = placed.op;
        columns = std::max({columns, op.in, op.out});
        if (op.kind == OperatorKind::kLinear) weights = std::max(weights, op.in * op.stride);
      }
    const kernels::AttentionShape heads = {job.micro_batch_size, job.sequence_length,
                                           job.model.heads / job.tp, job.model.head_dim,
                                           job.model.kv_heads / job.tp};
    scratch_ = Take(
        std::max({kernels::NormScratchFloats(columns) * 4, kernels::BiasScratchFloats(columns) * 4,
                  static_cast<int64_t>(cuda::AttentionScratchBytes(heads))}));
    if (job.dtype != Dtype::kBf16) return;
    weight_ = reinterpret_cast<kernels::BFloat16*>(Take(weights * 2));
    bias_ = reinterpret_cast<kernels::BFloat16*>(Take(columns * 2));
  }

#define PP_KERNEL(Name) \
  void Name(const kernels::Name##Args& args) override { cuda::Name(args, stream_); }
#define PP_KERNEL_OF_BOTH(Name)                                            \
  void Name(const kernels::Name##Args<float>& args) override {             \
    cuda::Name(WithScratch(args), stream_);                                \
  }                                                                        \
  void Name(const kernels::Name##Args<kernels::BFloat16>& args) override { \
    cuda::Name(WithScratch(args), stream_);                                \
  }
  PP_PLAIN_KERNELS(PP_KERNEL)
  PP_ACTIVATION_KERNELS(PP_KERNEL_OF_BOTH)
#undef PP_KERNEL
#undef PP_KERNEL_OF_BOTH

  int Prepare(const kernels::MatmulShape& shape) override {
    const int product = driver_.Prepare(shape);
    shapes_.resize(std::max<size_t>(shapes_.size(), product + 1));
    shapes_[product] = shape;
    return product;
  }

  // The driver's products take numbers of one type.
  void Multiply(int product, const kernels::MatmulArgs& args) override {
    const kernels::MatmulShape& shape = shapes_[product];
    kernels::MatmulArgs rounded = args;
    if (shape.numbers == kernels::MatmulNumbers::kBf16) {
      cuda::Round({.n = NumbersOfB(shape), .x = static_cast<const float*>(args.b), .y = weight_},
                  stream_);
      rounded.b = weight_;
      if (shape.bias == kernels::WithBias::kYes) {
        cuda::Round({.n = shape.n, .x = args.bias, .y = bias_}, stream_);
        rounded.bias = reinterpret_cast<const float*>(bias_);
      }
    }
    driver_.Multiply(product, rounded, stream_);
  }

  void Copy(const void* from, int64_t bytes, void* to) override {
    driver_.Copy(to, from, bytes, stream_);
  }

  // The same for all stages, and all steps.
  void Angles(const std::vector<double>& turns, int64_t tokens, float* out) override {
    const int64_t bytes = 2 * tokens * static_cast<int64_t>(turns.size() * sizeof(float));
    if (angles_ == nullptr) {
      Result<std::byte*> pinned = driver_.TakePinned(bytes);
      if (!pinned.ok()) throw std::bad_alloc();
      RopeAngles(turns, tokens, reinterpret_cast<float*>(*pinned));
      angles_ = Take(bytes);
      Copy(*pinned, bytes, angles_);
    }
    Copy(angles_, bytes, out);
  }

  int64_t bytes() const override { return bytes_; }

 private:
  static int64_t NumbersOfB(const kernels::MatmulShape& shape) {
    const bool turned = shape.operands == kernels::Operands::kNT;
    const int64_t rows = turned ? shape.n : shape.k, columns = turned ? shape.k : shape.n;
    return (rows - 1) * (shape.ldb > 0 ? shape.ldb : columns) + columns;
  }

  std::byte* Take(int64_t bytes) {
    Result<std::byte*> taken = driver_.Take(bytes);
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
  std::vector<kernels::MatmulShape> shapes_;  // by product
  int64_t bytes_ = 0;
  std::byte* scratch_ = nullptr;
  kernels::BFloat16 *weight_ = nullptr, *bias_ = nullptr;  // that a product takes, rounded
  std::byte* angles_ = nullptr;
};

}  // namespace

std::unique_ptr<Kernels> MakeCudaKernels(CudaDriver* driver, CudaDriver::Stream stream,
                                         const Job& job) {
  return std::make_unique<CudaKernels>(driver, stream, job);
}

}  // namespace pp
