// What is trained: a model, a micro-batch of it, and where it is cut into stages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schema/model/attribute.h"
#include "schema/model/config.h"
#include "schema/model/dtype.h"
#include "schema/model/lora.h"
#include "schema/model/operators.h"
#include "schema/model/shapes.h"

namespace pp {

// A kind of device.
enum class DeviceKind : uint8_t { kCpu, kCuda };
inline constexpr std::string_view kDeviceKindNames[] = {"cpu", "cuda"};
inline constexpr std::string_view NameOf(DeviceKind backend) {
  return kDeviceKindNames[static_cast<int>(backend)];
}

struct Job {
  ModelConfig model;
  int micro_batch_size = 1;
  int sequence_length = 0;
  std::vector<int> layers_per_stage;
  int tp = 1;  // tensor-parallel peers, each of which has a part of every stage
  // Each peer holds only its share of the tokens of the residual stream, the norms and all that is
  // passed from stage to stage (Korthikanti et al., "Reducing Activation Recomputation in Large
  // Transformer Models", 2022, section 4.2.2).
  bool sequence_parallel = false;

  // The kinds of operators whose saved values a CFW drops, in the order of OperatorKind; it keeps
  // what the others save. Empty: all kinds.
  std::vector<OperatorKind> recompute;
  // The kinds of operators, of Norm, Gelu and SwiGlu, whose outputs a stash has, in that order;
  // those of the others are recomputed in the backward. A CFW drops them.
  std::vector<OperatorKind> keep;

  // Of the micro-batches where they differ; then the two above are the largest's.
  Shapes shapes;

  Lora lora;  // what is trained, if it is not all

  // Sequences may be packed documents, for whose bounds a rank then has room (Workspace).
  bool documents = false;
  // How long the document of a mean token is, by which attention is priced; 0: as a sequence.
  int document_length = 0;
  int attention_length() const { return document_length > 0 ? document_length : sequence_length; }

  Dtype dtype = Dtype::kFp32;
  // Whose memory is counted. Any kind can run it (AddRegions in schema/semantics/regions.h).
  DeviceKind backend = DeviceKind::kCpu;

  bool has_model() const { return model.layers > 0; }
  int stages() const { return static_cast<int>(layers_per_stage.size()); }
  // N.
  int64_t tokens() const { return int64_t{micro_batch_size} * sequence_length; }
  // Of those, a peer's share of the residual stream: index i has this many, from i times this many
  // on.
  int64_t stream_tokens() const { return sequence_parallel ? tokens() / tp : tokens(); }

  // The most that a micro-batch of any shape has.
  int64_t most_tokens() const;
  // The same job whose micro-batches all have that shape, a number below shapes.count().
  Job OfShape(int shape) const;

  // Whether the first and the last stage share a tensor that is trained.
  bool TrainsTied() const { return model.tied && !lora.given(); }

  bool operator==(const Job&) const = default;
};

inline constexpr std::string_view kRecomputeNames[] = {"stage", "norm", "linear", "attention",
                                                       "residual"};
inline constexpr std::string_view kKeepNames[] = {"none", "norm", "gelu", "swiglu"};

inline constexpr std::tuple kJobAttributes{
    Attribute{"batch",
              &Job::micro_batch_size,
              1,
              "--micro-batch-size",
              "sequences per micro-batch",
              {},
              1,
              1 << 20,
              HeaderLine::kAlways},
    Attribute{"sequence",
              &Job::sequence_length,
              2,
              "--seq-length",
              "tokens per sequence (default: the model's positions)",
              {},
              1,
              INT32_MAX,
              HeaderLine::kShared},
    Attribute{"shapes", &Job::shapes, 13, "--shapes",
              "micro-batches x tokens, perhaps x sequences: 8x1024,4x2048x2 (sets --microbatches, "
              "--seq-length and --micro-batch-size)"},
    Attribute{"layers", &Job::layers_per_stage, 3, "--layers-per-stage",
              "as in 2,3,3,2, or auto: least for the busiest device (default equal)"},
    Attribute{"tp", &Job::tp, 4, "--tp", "tensor-parallel peers of each device", {}, 1},
    Attribute{"sequence-parallel",
              &Job::sequence_parallel,
              5,
              "--sequence-parallel",
              "norms, dropout and messages are shared among the peers, too",
              {},
              0,
              1,
              HeaderLine::kShared},
    Attribute{"recompute", &Job::recompute, 6, "--recompute",
              "what a CFW drops: stage (default), or of norm, linear, attention, residual",
              kRecomputeNames},
    Attribute{
        "keep", &Job::keep, 9, "--keep",
        "outputs that are saved, not recomputed by each backward: none (default), or of norm, "
        "gelu, swiglu; those of head norms always are",
        kKeepNames},
    Attribute{"lora", &Job::lora, 10, "--lora",
              "train low-rank adapters alone: r=16,alpha=32, then names of Linears, or all-linear "
              "(default: q_proj,v_proj, or GPT-2's c_attn)"},
    Attribute{
        "documents", &Job::documents, 11, "--documents",
        "room for the bounds of documents that are packed in sequences, for piperun --documents"},
    Attribute{"document-length",
              &Job::document_length,
              12,
              "--document-length",
              "price attention by documents of so many tokens (default: of a sequence's)",
              {},
              0,
              INT32_MAX,
              HeaderLine::kShared},
    Attribute{"dtype", &Job::dtype, 7, "--dtype", "of activations and messages", kDtypeNames},
    Attribute{"backend", &Job::backend, 8, "--backend",
              "whose memory the plan counts; either runs on both", kDeviceKindNames},
};

// The operators of its model, with its adapters.
ModelTable TableOf(const Job& job);
// Its adapters, for the family's usual targets if it names none.
Lora WithTargets(const Job& job);

// The same number of layers for each stage. The error names no file or option: the caller knows
// which option it was (Status::In).
Result<std::vector<int>> SplitLayers(int layers, int stages);
// Whether a user's split fits. A stage may have 0 layers: only embeddings, only a head.
Status CheckSplit(const std::vector<int>& split, int layers, int stages);
// Model, micro-batch, split and peers: all that can be wrong with a Job from outside.
Status CheckJob(const Job& job);

}  // namespace pp
