#include "runtime/model/parameters.h"

#include <fmt/format.h>

#include <cmath>

#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/random.h"
#include "kernels/sum_squares.h"
#include "runtime/files/safetensors.h"

namespace pp {
namespace {

static_assert(kNormBlock == kernels::kSumSquaresBlock);

float* Floats(std::byte* base, int64_t offset) { return reinterpret_cast<float*>(base + offset); }
const float* Floats(const std::byte* base, int64_t offset) {
  return reinterpret_cast<const float*>(base + offset);
}

}  // namespace

void InitWeights(const StageLayout& layout, uint64_t seed, std::byte* weights) {
  for (const Tensor& tensor : layout.tensors) {
    float* out = Floats(weights, tensor.weight);
    if (tensor.init_std == 0) {
      kernels::cpu::Fill({.n = tensor.elements(), .out = out, .value = tensor.init_mean});
    } else {
      kernels::cpu::RandomNormal({.out = out,
                                  .n = tensor.elements(),
                                  .seed = seed,
                                  .tensor = static_cast<uint32_t>(tensor.id),
                                  .std = tensor.init_std});
    }
  }
}

Status LoadWeights(const StageLayout& layout, const std::string& dir, std::byte* weights) {
  const std::string path = dir + "/model.safetensors";
  Result<Safetensors> file = Safetensors::Open(path);
  PP_RETURN_IF_ERROR(file.status());
  for (const Tensor& tensor : layout.tensors) {
    std::string name = tensor.name;
    if (file->Find(name) == nullptr) name = "transformer." + name;
    const SafetensorsEntry* entry = file->Find(name);
    if (entry == nullptr) {
      return Status::Invalid(fmt::format("{}: tensor {} is missing", path, tensor.name));
    }
    const std::vector<int64_t> shape = tensor.rows == 1
                                           ? std::vector<int64_t>{tensor.cols}
                                           : std::vector<int64_t>{tensor.rows, tensor.cols};
    PP_RETURN_IF_ERROR(file->ReadFloats(name, shape, Floats(weights, tensor.weight)));
  }
  return {};
}

void AddTied(const StageLayout& layout, std::byte* wgrad) {
  if (layout.tied_lookup < 0 || layout.tied_head < 0) return;
  kernels::cpu::Add({.n = layout.tied_bytes / 4,
                     .x = Floats(wgrad, layout.tied_head),
                     .out = Floats(wgrad, layout.tied_lookup)});
}

void SumSquares(const StageLayout& layout, const std::byte* wgrad, double* norm) {
  for (const Tensor& tensor : layout.tensors) {
    if (tensor.blocks == 0) continue;
    kernels::cpu::SumSquares({.n = tensor.elements(),
                              .x = Floats(wgrad, tensor.wgrad),
                              .partial = norm + tensor.first_block});
  }
}

void StepAdamW(const StageLayout& layout, const AdamWOptions& options, const std::byte* wgrad,
               std::byte* optimizer, std::byte* weights) {
  const double step = static_cast<double>(options.step);
  for (const Tensor& tensor : layout.tensors) {
    kernels::cpu::AdamW(
        {.n = tensor.elements(),
         .weights = Floats(weights, tensor.weight),
         .m = Floats(optimizer, tensor.weight),
         .v = Floats(optimizer, layout.optimizer_v + tensor.weight),
         .gradient = Floats(wgrad, tensor.wgrad),
         .gradient_scale = options.gradient_scale,
         .learning_rate = options.learning_rate,
         .beta1 = options.beta1,
         .beta2 = options.beta2,
         .epsilon = options.epsilon,
         .decay = tensor.decay ? options.weight_decay : 0.0f,
         .correction1 = static_cast<float>(1 - std::pow(double{options.beta1}, step)),
         .correction2 = static_cast<float>(1 - std::pow(double{options.beta2}, step))});
  }
}

}  // namespace pp
