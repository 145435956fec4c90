#include "runtime/model/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>
#include <span>

#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/random.h"
#include "kernels/sum_squares.h"
#include "runtime/files/adapter_config.h"
#include "schema/base/disk.h"

namespace pp {
namespace {

static_assert(kNormBlock == kernels::kSumSquaresBlock);

float* Floats(std::byte* base, int64_t offset) { return reinterpret_cast<float*>(base + offset); }
const float* Floats(const std::byte* base, int64_t offset) {
  return reinterpret_cast<const float*>(base + offset);
}

// That the files have the tensors of all of the job's adapters, and no others.
Status CheckAdapterNames(const WeightFiles& files, const Job& job) {
  Job whole = job;
  whole.layers_per_stage = {job.model.layers};
  whole.tp = 1;
  whole.sequence_parallel = false;
  std::set<std::string> names;
  for (const Tensor& tensor : LayoutStage(whole, 0).tensors)
    if (tensor.adapter) names.insert(kAdapterPrefix + tensor.name());
  for (const std::string& name : names)
    if (!files.Has(name))
      return Status::Invalid(fmt::format("{}: tensor {} is missing", files.path(), name));
  for (const std::string& name : files.Names())
    if (!names.contains(name))
      return Status::Invalid(
          fmt::format("{}: tensor {} is not of an adapter of the plan's --lora {}", files.path(),
                      Shown(name), TextOf(job.lora)));
  return {};
}

// Weights of the same shape make different models, depending on the rest of a configuration.
Status CheckConfig(const std::string& path, const ModelConfig& model) {
  std::error_code error;
  const bool exists = std::filesystem::exists(path, error);
  if (error) return Status::Invalid(fmt::format("{}: {}", path, error.message()));
  if (!exists) return {};
  const Result<ModelConfig> config = LoadModelConfig(path);
  PP_RETURN_IF_ERROR(config.status());
  return CheckSameWeights(*config, path, model);
}

}  // namespace

Result<WeightSource> WeightSource::New(uint64_t seed) {
  WeightSource source;
  source.seed_ = seed;
  return source;
}

Result<WeightSource> WeightSource::Open(const std::string& dir, const ModelConfig& model,
                                        uint64_t seed) {
  PP_RETURN_IF_ERROR(CheckConfig(WeightFiles::Folder(dir) + "/config.json", model));
  WeightSource source;
  source.seed_ = seed;
  source.names_.emplace(model);
  Result<WeightFiles> files = WeightFiles::Open(dir);
  PP_RETURN_IF_ERROR(files.status());
  source.files_.emplace(std::move(*files));
  return source;
}

Status WeightSource::OpenAdapter(const std::string& dir, const Job& job,
                                 std::vector<std::string>* notes) {
  std::vector<std::string> of_config;
  PP_RETURN_IF_ERROR(CheckAdapterConfig(dir, job, &of_config));
  if (notes != nullptr) notes->insert(notes->end(), of_config.begin(), of_config.end());
  const std::string path = AdapterPath(dir);
  PP_RETURN_IF_ERROR(
      InputFile::Open(path, "an adapter's, as peft saves it; no .bin is read").status());
  Result<WeightFiles> files = WeightFiles::Open(path);
  PP_RETURN_IF_ERROR(files.status());
  PP_RETURN_IF_ERROR(CheckAdapterNames(*files, job));
  adapter_.emplace(std::move(*files));
  return {};
}

Result<WeightSource> OpenWeights(const GivenWeights& given, const Job& job,
                                 std::vector<std::string>* notes) {
  Result<WeightSource> source = given.weights.empty()
                                    ? WeightSource::New(given.seed)
                                    : WeightSource::Open(given.weights, job.model, given.seed);
  PP_RETURN_IF_ERROR(source.status());
  if (!given.adapter.empty())
    PP_RETURN_IF_ERROR(source->OpenAdapter(given.adapter, job, notes).In("--adapter"));
  return source;
}

Status WeightSource::Read(const Tensor& tensor, float* out, const Peer& peer) {
  std::optional<WeightFiles>& from = tensor.adapter ? adapter_ : files_;
  if (!from && tensor.init_std == 0) {
    kernels::cpu::Fill({.n = tensor.elements(), .out = out, .value = tensor.init_mean});
    return {};
  }
  const std::vector<Slice> slices = SlicesOf(tensor, peer);
  int64_t covered = 0;
  for (const Slice& slice : slices) covered += slice.rows * slice.cols;
  if (covered < tensor.elements()) kernels::cpu::Fill({.n = tensor.elements(), .out = out});
  for (const Slice& slice : slices) {
    if (from) {
      PP_RETURN_IF_ERROR(ReadSlice(&*from, slice, tensor.cols, out + slice.at));
    } else {
      Make(tensor, slice, out + slice.at);
    }
  }
  if (!from || !tensor.adapter) return {};
  const auto* wrong = std::find_if(out, out + tensor.elements(),
                                   [](float number) { return !std::isfinite(number); });
  if (wrong == out + tensor.elements()) return {};
  return Status::Invalid(fmt::format("--adapter: {}: tensor {} has {} (finite numbers)",
                                     adapter_->path(), kAdapterPrefix + tensor.name(), *wrong));
}

Status WeightSource::CheckAllUsed(UnusedWeights unused, std::vector<std::string>* notes) {
  return names_->CheckAllUsed(&*files_, unused, notes);
}

Status WeightSource::ReadSlice(WeightFiles* files, const Slice& slice, int64_t row_stride,
                               float* out) const {
  const std::string name = adapter_ && files == &*adapter_ ? kAdapterPrefix + slice.name
                                                           : names_->In(*files, slice.name);
  if (name.empty())
    return Status::Invalid(fmt::format("{}: tensor {} is missing", files->path(), slice.name));
  const Status status = files->ReadFloats(name, slice.shape,
                                          {.row = slice.row,
                                           .col = slice.col,
                                           .rows = slice.rows,
                                           .cols = slice.cols,
                                           .row_stride = row_stride},
                                          out);
  return adapter_ && files == &*adapter_ ? status.In("--adapter") : status;
}

// The same values, independent of who makes which part of the parameter.
void WeightSource::Make(const Tensor& tensor, const Slice& slice, float* out) const {
  const bool whole_rows = slice.cols == slice.row_elements && slice.cols == tensor.cols;
  const int64_t runs = whole_rows ? 1 : slice.rows;
  for (int64_t row = 0; row < runs; ++row)
    kernels::cpu::RandomNormal({.out = out + row * tensor.cols,
                                .n = whole_rows ? slice.rows * slice.cols : slice.cols,
                                .first_element = slice.element + row * slice.row_elements,
                                .seed = seed_,
                                .tensor = static_cast<uint32_t>(tensor.id),
                                .std = tensor.init_std});
}

std::vector<OwnedPart> AllParts(const StageLayout& layout) {
  std::vector<OwnedPart> parts;
  for (const Tensor& tensor : layout.tensors) {
    if (!tensor.trainable()) continue;
    const int64_t m = tensor.weight - layout.trained;
    parts.push_back({{&tensor, 0, tensor.elements()}, m, layout.optimizer_v + m});
  }
  return parts;
}

std::vector<OwnedPart> PartsOfShards(const StageLayout& layout, const OptimizerShards& shards) {
  std::vector<OwnedPart> parts;
  for (size_t b = 0; b < shards.shards.size(); ++b)
    for (const TensorPart& part : PartsIn(layout, shards.shards[b])) {
      const int64_t inside = part.tensor->wgrad + part.begin * 4 - shards.shards[b].begin;
      const int64_t m = shards.offsets[b] + inside;
      parts.push_back({part, m, shards.v + m});
    }
  return parts;
}

std::vector<OwnedPart> OwnedPartsOf(const Program& program, const StageLayout& layout, int replica,
                                    int pipe) {
  if (program.zero == 0 || program.Copies() == 1) return AllParts(layout);
  const int64_t copy = int64_t{replica} * static_cast<int64_t>(program.pipes.size()) + pipe;
  const OptimizerShards mine = OptimizerShardsOf(layout, BucketsOf(layout), program.Copies(), copy);
  return PartsOfShards(layout, mine);
}

void AddTied(const StageLayout& layout, std::byte* wgrad) {
  if (layout.tied_lookup < 0 || layout.tied_head < 0) return;
  kernels::cpu::Add({.n = layout.tied_bytes / 4,
                     .x = Floats(wgrad, layout.tied_head),
                     .out = Floats(wgrad, layout.tied_lookup)});
}

namespace {

// run(tensors) with tensor_of(part) of the parts, many at a time: a step allocates no memory.
template <typename TensorOf, typename Run>
void ForTensors(const std::vector<OwnedPart>& parts, const TensorOf& tensor_of, const Run& run) {
  std::array<decltype(tensor_of(parts[0])), 64> tensors;
  for (size_t begin = 0; begin < parts.size(); begin += tensors.size()) {
    const size_t count = std::min(tensors.size(), parts.size() - begin);
    for (size_t i = 0; i < count; ++i) tensors[i] = tensor_of(parts[begin + i]);
    run(std::span(tensors).first(count));
  }
}

}  // namespace

void SumSquares(Kernels& kernels, const std::vector<OwnedPart>& parts, const std::byte* wgrad,
                double* norm) {
  const auto tensor_of = [&](const OwnedPart& owned) -> kernels::SumSquaresTensor {
    const TensorPart& part = owned.part;
    return {.n = part.blocks() == 0 ? 0 : part.count,
            .x = Floats(wgrad, part.tensor->wgrad) + part.begin,
            .partial = norm + part.first_block()};
  };
  ForTensors(parts, tensor_of, [&](const auto& tensors) { kernels.SumSquares({tensors}); });
}

bool WritesRounded(const TensorPart& part) {
  return part.tensor->rounded >= 0 && part.count == part.tensor->elements();
}

void StepAdamW(Kernels& kernels, const std::vector<OwnedPart>& parts, const AdamWOptions& options,
               const StepPlaces& places) {
  const auto tensor_of = [&](const OwnedPart& owned) -> kernels::AdamWTensor {
    const TensorPart& part = owned.part;
    const bool rounds = places.rounded != nullptr && WritesRounded(part);
    return {.n = part.count,
            .weights = Floats(places.weights, part.tensor->weight) + part.begin,
            .m = Floats(places.optimizer, owned.m),
            .v = Floats(places.optimizer, owned.v),
            .gradient = Floats(places.wgrad, part.tensor->wgrad) + part.begin,
            .decay = part.tensor->matrix ? options.weight_decay : 0.0f,
            .rounded = rounds ? places.rounded + part.tensor->rounded : nullptr};
  };
  const double step = static_cast<double>(options.step);
  ForTensors(parts, tensor_of, [&](const auto& tensors) {
    kernels.AdamW({.tensors = tensors,
                   .clipped = options.clipped,
                   .learning_rate = options.learning_rate,
                   .beta1 = options.beta1,
                   .beta2 = options.beta2,
                   .epsilon = options.epsilon,
                   .correction1 = static_cast<float>(1 - std::pow(double{options.beta1}, step)),
                   .correction2 = static_cast<float>(1 - std::pow(double{options.beta2}, step)),
                   .rounding = kernels.rounding()});
  });
}

}  // namespace pp
