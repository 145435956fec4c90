// What is trained: a model, a micro-batch of it, and where it is cut into stages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schema/model/config.h"
#include "schema/model/dtype.h"
#include "schema/model/operators.h"
#include "schema/status.h"

namespace pp {

struct Job {
  ModelConfig model;
  int micro_batch_size = 1;
  int sequence_length = 0;
  std::vector<int> layers_per_stage;
  int tp = 1;  // tensor parallel peers, each of which has a part of every stage
  // Each peer has the residual stream, norms and all that goes from stage to stage of its share of
  // the tokens alone (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
  // Models", 2022, section 4.2.2).
  bool sequence_parallel = false;

  // Of which kinds of operators a CFW drops what they save, in the order of OperatorKind; what the
  // others save it keeps. Empty: of all.
  std::vector<OperatorKind> recompute;

  Dtype dtype = Dtype::kFp32;

  int stages() const { return static_cast<int>(layers_per_stage.size()); }
  // N.
  int64_t tokens() const { return int64_t{micro_batch_size} * sequence_length; }
  // Of those, what a peer has of the residual stream: with index i, from i times so many on.
  int64_t stream_tokens() const { return sequence_parallel ? tokens() / tp : tokens(); }

  bool operator==(const Job&) const = default;
};

// The same number of layers for each stage. The error has no file or option in front: the caller
// knows which option it was (Status::In).
Result<std::vector<int>> SplitLayers(int layers, int stages);
// Whether a split that somebody wrote fits. A stage may have 0 layers: only embeddings, only a
// head.
Status CheckSplit(const std::vector<int>& split, int layers, int stages);
// Model, micro-batch, split and peers: all that may be wrong with a Job from outside.
Status CheckJob(const Job& job);

// "stage", or some of "norm,linear,attention,residual"; and back. The error has no option in front.
Result<std::vector<OperatorKind>> ParseRecompute(std::string_view text);
std::string RecomputeText(const std::vector<OperatorKind>& recompute);

}  // namespace pp
