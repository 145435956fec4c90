// A model as a list of operators. A family is one file (gpt2.cc) that states its list; all else
// follows from it: tensors, what is saved and where it lies (model.cc), forward, backward and
// recomputation (runtime/model/stage_model.h).
//
// A list is a chain. Every operator reads what the one before it gave, and gives `out` floats a
// token. Beside it runs the residual stream: an embedding begins it, a norm reads it, a residual
// adds to it, and it is what goes from stage to stage.
//
//   kind        gives                                  parameters            saved for its backward
//   Embedding   the stream: token and position rows    [V, C], [P, C]        -
//   Norm        of the stream                          gamma [C], beta [C]   mean, 1 / deviation
//   Linear      in W + b                               W, maybe b [out]      its input
//   Attention   of queries, keys and values            -                     its input, output, lse
//   Gelu        of each number                         -                     its input
//   Residual    the stream: itself + dropout(in)       -                     -
//   Loss        cross-entropy with the targets         -                     its input, statistics
//
// What a Norm or a Gelu gives is not saved: it is made again for the weight gradient of the Linear
// behind it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pp {

struct ModelConfig;

enum class OperatorKind : uint8_t {
  kEmbedding,
  kNorm,
  kLinear,
  kAttention,
  kGelu,
  kResidual,
  kLoss,
};

struct Parameter {
  std::string name;  // within the layer
  int64_t rows = 1;  // 1 for a vector, and for some matrices
  int64_t cols = 0;
  bool matrix = false;  // only matrices have weight decay
  float mean = 0;       // a new model's are N(mean, std)
  float std = 0;
  bool tied = false;  // the first stage's embedding of tokens: the first parameter of the model
};

// How a Linear's matrix lies: [in, out] (Conv1D), or [out, in] (an embedding as the head).
enum class Matrix : uint8_t { kInOut, kOutIn };

struct Operator {
  OperatorKind kind;
  int64_t in = 0, out = 0;  // floats a token
  int64_t stride = 0;       // floats from one token's output to the next: `out`, or more
  std::vector<Parameter> parameters;
  Matrix matrix = Matrix::kInOut;
  int heads = 0;      // Attention
  float epsilon = 0;  // Norm
  float dropout = 0;  // Embedding, Attention, Residual
  int dropout_id =
      0;  // which dropout of its layer it is, below 8; the embedding's counts to layer 0
};

struct ModelTable {
  std::string layer_prefix;  // of the names in layer i, where {} stands for i
  std::vector<Operator> first, layer, last;
};

// Radford et al., "Language models are unsupervised multitask learners", 2019.
ModelTable Gpt2(const ModelConfig& config);

}  // namespace pp
