// What happens to a stage's parameters outside of the micro-batches: they are initialised or
// loaded, their gradients are measured, and the optimizer updates them. Places are StageLayout's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device/kernels.h"
#include "runtime/files/weight_files.h"
#include "runtime/model/weight_names.h"
#include "schema/base/status.h"
#include "schema/model/layout.h"
#include "schema/semantics/buckets.h"

namespace pp {

// Where a stage's weights come from: a new model, with the same values in every split, or a Hugging
// Face folder (weight_files.h).
class WeightSource {
 public:
  static Result<WeightSource> New(uint64_t seed);
  // Invalid: no such file, or DIR/config.json, if there is one, is not this model's. Names are
  // those of weight_names.h. `seed`: of adapters, which are new.
  static Result<WeightSource> Open(const std::string& dir, const ModelConfig& model,
                                   uint64_t seed = 1);
  // Takes the job's adapters from a folder that peft or an export wrote (adapter_config.h), instead
  // of new ones. Invalid: they are others; a tensor is missing, or one is not an adapter's.
  Status OpenAdapter(const std::string& dir, const Job& job, std::vector<std::string>* notes);

  // All elements of the peer's tensor. Invalid: it is missing or has another shape or type; the
  // error names it.
  Status Read(const Tensor& tensor, float* out, const Peer& peer = {});
  // See WeightNames. REQUIRES: it is open.
  Status CheckAllUsed(UnusedWeights unused, std::vector<std::string>* notes);

 private:
  WeightSource() = default;
  Status ReadSlice(WeightFiles* files, const Slice& slice, int64_t row_stride, float* out) const;
  void Make(const Tensor& tensor, const Slice& slice, float* out) const;

  uint64_t seed_ = 0;
  std::optional<WeightNames> names_;
  std::optional<WeightFiles> files_;  // none, of both: a new model
  std::optional<WeightFiles> adapter_;
};

// Where a run's weights come from: what it is given, by piperun's options.
struct GivenWeights {
  uint64_t seed = 1;             // of what is new
  std::string weights, adapter;  // folders; empty: new
};
// Notes are OpenAdapter's; null: they are known.
Result<WeightSource> OpenWeights(const GivenWeights& given, const Job& job,
                                 std::vector<std::string>* notes = nullptr);

// A part of a tensor that is trained, which a rank updates: all of it, or its shard's part
// (ZeRO-1).
struct OwnedPart {
  TensorPart part;
  int64_t m = 0, v = 0;  // offsets of its moments in the optimizer region
};
// `layout` must outlive the result.
std::vector<OwnedPart> AllParts(const StageLayout& layout);
std::vector<OwnedPart> PartsOfShards(const StageLayout& layout, const OptimizerShards& shards);

// All of a stage's tensors that are trained or, under ZeRO-1, the shards of the copy in that
// replica and pipe.
std::vector<OwnedPart> OwnedPartsOf(const Program& program, const StageLayout& layout, int replica,
                                    int pipe);

// With one stage and tied embeddings: adds the head's gradient to the look-up's. With more, the two
// are on different stages, and each adds what it receives: nothing happens here.
void AddTied(const StageLayout& layout, std::byte* wgrad);

// norm[i] = sum of the squares of this stage's norm block i, for the blocks of the parts. REQUIRES:
// tied gradients are added.
void SumSquares(Kernels& kernels, const std::vector<OwnedPart>& parts, const std::byte* wgrad,
                double* norm);

struct AdamWOptions {
  float learning_rate = 0;
  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f;
  float weight_decay = 0;  // of matrices
  const kernels::Clipped* clipped =
      nullptr;       // of the device; null: gradients are taken as they are
  int64_t step = 1;  // counts from 1
};

// Whether AdamW on this part also writes the tensor as a GPU's products take it: if it is all of
// the tensor. Of a shard, peers send the rest.
bool WritesRounded(const TensorPart& part);

// What a step of a stage changes.
struct StepPlaces {
  const std::byte* wgrad = nullptr;
  std::byte* optimizer = nullptr;
  std::byte* weights = nullptr;
  std::byte* rounded = nullptr;  // of tensors that are updated whole; null: there is none
};
// AdamW on the parts. REQUIRES: tied gradients are added.
void StepAdamW(Kernels& kernels, const std::vector<OwnedPart>& parts, const AdamWOptions& options,
               const StepPlaces& places);

}  // namespace pp
