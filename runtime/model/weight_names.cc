#include "runtime/model/weight_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

#include "schema/model/families.h"
#include "schema/model/layout.h"

namespace pp {
namespace {

// What no model reads, because it follows from the configuration: GPT-2's causal mask with the
// value of what is masked, and the frequencies of rotary position embeddings.
constexpr std::string_view kMasks[] = {".attn.bias", ".attn.masked_bias"};
constexpr std::string_view kFrequencies = "rotary_emb.inv_freq";

// Numbers of each of two matrices that are compared at once.
constexpr int64_t kPiece = 1 << 20;

// All tensors, as a single stage has them.
std::vector<Tensor> TensorsOf(const ModelConfig& model) {
  Job job{.model = model};
  job.sequence_length = 1;
  job.layers_per_stage = {model.layers};
  return LayoutStage(job, 0).tensors;
}

std::string WithOthers(const std::string& first, size_t count) {
  if (count == 1) return first;
  return fmt::format("{}, and {} more tensor{} not used", first, count - 1,
                     count == 2 ? " is" : "s are");
}

}  // namespace

WeightNames::WeightNames(const ModelConfig& model) {
  const ModelTable table = TableOf(model);
  prefix_ = table.prefix;
  rotates_ = std::any_of(table.layer.begin(), table.layer.end(),
                         [](const Operator& op) { return op.kind == OperatorKind::kRope; });
  for (const Tensor& tensor : TensorsOf(model))
    for (const Slice& slice : SlicesOf(tensor, {}))
      if (tensors_.empty() || tensors_.back() != slice.name) {
        if (tensors_.empty()) embedding_shape_ = slice.shape;
        tensors_.push_back(slice.name);
      }
  if (!model.tied) return;
  ModelConfig untied = model;
  untied.tied = false;
  tied_head_ = TensorsOf(untied).back().name();
}

std::string WeightNames::In(const WeightFiles& files, const std::string& tensor) const {
  if (files.Has(tensor)) return tensor;
  if (tensor.starts_with(prefix_) && files.Has(tensor.substr(prefix_.size())))
    return tensor.substr(prefix_.size());
  const bool head = tied_head_ && tensor == tensors_.front() && files.Has(*tied_head_);
  return head ? *tied_head_ : "";
}

bool WeightNames::IsNeedless(const std::string& name) const {
  if (rotates_) return name.ends_with(kFrequencies);
  return std::any_of(std::begin(kMasks), std::end(kMasks),
                     [&](std::string_view mask) { return name.ends_with(mask); });
}

// Whether it is the tied head and has the embedding's numbers.
Result<bool> WeightNames::IsTiedHead(WeightFiles* files, const std::string& name) const {
  if (name != tied_head_) return false;
  const std::string embedding = In(*files, tensors_.front());
  const int64_t rows = embedding_shape_.front(), cols = embedding_shape_.back();
  const int64_t at_once = std::max<int64_t>(1, kPiece / cols);
  std::vector<float> one(at_once * cols), other(at_once * cols);
  for (int64_t row = 0; row < rows; row += at_once) {
    const Safetensors::Block block{
        .row = row, .rows = std::min(at_once, rows - row), .cols = cols, .row_stride = cols};
    PP_RETURN_IF_ERROR(files->ReadFloats(embedding, embedding_shape_, block, one.data()));
    const Status read = files->ReadFloats(name, embedding_shape_, block, other.data());
    if (read.code() == Code::kInvalid) return false;  // of another shape or type
    PP_RETURN_IF_ERROR(read);
    if (std::memcmp(one.data(), other.data(), block.rows * cols * sizeof(float)) != 0) return false;
  }
  return true;
}

Status WeightNames::CheckAllUsed(WeightFiles* files, UnusedWeights unused,
                                 std::vector<std::string>* notes) const {
  std::set<std::string> used;
  for (const std::string& tensor : tensors_) {
    const std::string name = In(*files, tensor);
    if (name.empty())
      return Status::Invalid(fmt::format("{}: tensor {} is missing", files->path(), tensor));
    used.insert(name);
  }
  std::vector<std::string> left;
  for (const std::string& name : files->Names()) {
    if (used.contains(name) || IsNeedless(name)) continue;
    const Result<bool> tied = IsTiedHead(files, name);
    PP_RETURN_IF_ERROR(tied.status());
    if (*tied) continue;
    left.push_back(fmt::format(
        "tensor {} {}", Shown(name),
        name == tied_head_
            ? fmt::format("differs from {}, to which the model ties it", tensors_.front())
            : "is not one of the model's"));
  }
  for (const std::string& name : files->twice())
    if (!IsNeedless(name)) left.push_back(fmt::format("tensor {} is in two files", Shown(name)));
  if (!left.empty()) {
    const std::string what = fmt::format("{}: {}", files->path(), WithOthers(left[0], left.size()));
    if (unused == UnusedWeights::kRefuse)
      return Status::Invalid(what + " (--unused-weights ignore, if that is meant)");
    notes->push_back(what);
  }
  std::vector<std::string> absent;
  for (const std::string& name : files->absent())
    if (!IsNeedless(name)) absent.push_back(name);
  if (!absent.empty())
    notes->push_back(
        fmt::format("{}: {}", files->path(),
                    WithOthers(fmt::format("tensor {} is in none of its files", Shown(absent[0])),
                               absent.size())));
  return {};
}

}  // namespace pp
