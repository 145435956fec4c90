// A model as a list of operators. A family is one file (gpt2.cc, llama.cc) that states its list;
// all else follows from it: tensors, what is saved and where it lies (layout.h), forward, backward
// and recomputation (runtime/model/stage_model.h), and costs.
//
// A list is a chain. Every operator reads the output of the one before it, and has an output of
// `out` floats per token. Parallel to the chain runs the residual stream: an embedding begins it, a
// norm reads it, a residual adds to it, and it is what is passed from stage to stage.
//
//   kind        output                                 parameters            saved for its backward
//   Embedding   the stream: token and position rows    [V', C], maybe [P, C]  -
//   Norm        of the stream                          gamma, maybe beta     1 / deviation, mean
//   Linear      in W + b                               W, maybe b            its input
//   HeadNorm    of each head of queries and of keys    gamma of each         its input, 1 /
//   deviation Rope        queries and keys turned, in place      -                     - Attention
//   of queries, keys and values            -                     its input, output, lse Gelu of
//   each element                        -                     its input SwiGlu      of [gate | up]
//   -                     its input Residual    the stream: itself + dropout(in)       - - Loss
//   cross-entropy with the targets         -                     its input's gradient
//
// V' is the vocabulary with room for whole sixteens (PartOf). A Norm without beta is RMSNorm, and
// has no mean. The output of a Norm, a Gelu or a SwiGlu is not saved, unless Job::keep says so: it
// is recomputed for the weight gradient of the Linear after it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schema/model/config.h"

namespace pp {

enum class OperatorKind : uint8_t {
  kEmbedding,
  kNorm,
  kLinear,
  kHeadNorm,
  kRope,
  kAttention,
  kGelu,
  kSwiGlu,
  kResidual,
  kLoss,
};
// As options and files name them.
inline constexpr std::string_view kOperatorNames[] = {
    "embedding", "norm", "linear", "head-norm", "rope",
    "attention", "gelu", "swiglu", "residual",  "loss"};
inline constexpr std::string_view NameOf(OperatorKind kind) {
  return kOperatorNames[static_cast<int>(kind)];
}

// A tensor of Hugging Face's files, or a part of it: some rows or columns of a matrix, or some
// elements of a vector.
struct Piece {
  std::string name;  // within the layer
  int64_t size = 0;
  int64_t multiple = 1;  // a peer has room for a multiple of this many

  bool operator==(const Piece&) const = default;
};

// How tensor-parallel peers share an operator (Shoeybi et al., "Megatron-LM", 2019). kNone: each
// peer does all of it. kOut: each has an equal share of the outputs of every piece; of an
// Embedding, of the tokens. kIn: of a Linear's inputs, and the peers' outputs are added.
enum class Cut : uint8_t { kNone, kOut, kIn };

struct Parameter {
  std::vector<Piece> pieces;  // side by side, in this order
  bool across = false;        // they are columns of a matrix, not rows
  Cut cut = Cut::kNone;       // kOut: each piece; kIn: the other side of the matrix
  int64_t rows = 1;           // 1 for a vector, and for some matrices
  int64_t cols = 0;
  bool matrix = false;  // only matrices have weight decay
  float mean = 0;       // a new model's are N(mean, std)
  float std = 0;
  bool tied = false;      // the first stage's embedding of tokens: the first parameter of the model
  bool trainable = true;  // else it stays as it is: it has no gradient, and no moments
  bool adapter = false;   // one of an adapter's, beside those of the model (lora.h)
};

// The layout of a Linear's matrix: [in, out] (Conv1D), or [out, in] (nn.Linear, an embedding as the
// head).
enum class Matrix : uint8_t { kInOut, kOutIn };

// A low-rank adapter of some of a Linear's outputs (lora.h).
struct Adapter {
  size_t a = 0;  // which of the Linear's parameters is A [rank, in]; the next one is B [out, rank]
  int64_t rank = 0;
  int64_t first = 0, out = 0;  // of the Linear's outputs, those from the first one on
  float scale = 1;
};
// Of one Linear, at most; and all of its parameters: matrix, bias, and two of each adapter.
inline constexpr size_t kMostAdapters = 3, kMostParameters = 2 + 2 * kMostAdapters;

struct Operator {
  OperatorKind kind;
  int64_t in = 0, out = 0;  // floats per token; logits: with room for all tokens (Piece)
  std::vector<Parameter> parameters;
  std::vector<Adapter> adapters;  // Linear
  Matrix matrix = Matrix::kInOut;
  Cut cut = Cut::kNone;
  int heads = 0, kv_heads = 0, head_dim = 0;  // Attention, HeadNorm, Rope
  int window = 0;                             // Attention (HeadsSpec)
  RopeConfig rope;                            // Rope
  GeluForm gelu = GeluForm::kTanh;            // Gelu
  float epsilon = 0;                          // Norm, HeadNorm
  float dropout = 0;                          // Embedding, Attention, Residual
  int dropout_id =
      0;  // which dropout of its layer it is, below 8; the embedding's counts to layer 0

  // Of a Linear.
  bool has_bias() const { return parameters.size() > 1 && !parameters[1].adapter; }
  // Whether its weight half has anything to do.
  bool trains() const {
    return std::any_of(parameters.begin(), parameters.end(),
                       [](const Parameter& parameter) { return parameter.trainable; });
  }
};

struct ModelTable {
  std::string prefix;        // of names, which files of a model without its head leave out
  std::string layer_prefix;  // of the names in layer i, with {} for i
  std::vector<Operator> first, layer, last;
};

// One of `tp` peers' part of it. The vocabulary is cut into equal parts of whole sixteens, the last
// of which may extend beyond it, or have none of it: rows of logits are aligned, and cuBLASLt
// computes a product with 50257 tokens up to seven times slower than one with 50272. All else
// divides evenly (TensorParallelLimit).
ModelTable PartOf(const ModelTable& table, int tp);
int64_t PartOf(const Piece& piece, int64_t tp);
// The greatest number of peers that the model can be cut for; the other legal ones are its
// divisors.
int TensorParallelLimit(const ModelTable& table);

// The operators that families are composed of.

// One row of `width` floats per token, and one per position if position_name is given.
struct EmbeddingSpec {
  std::string token_name, position_name;
  int64_t vocabulary = 0, positions = 0, width = 0;
  float std = 0, dropout = 0;
};
Operator Embedding(const EmbeddingSpec& spec);

Operator LayerNorm(const std::string& name, int64_t width, float epsilon);
Operator RmsNorm(const std::string& name, int64_t width, float epsilon);

// `out`: the outputs, under the names of their matrices without ".weight"; biases end in ".bias".
// What belongs to different heads or gates is a separate piece, though the file has one matrix.
enum class Bias : uint8_t { kNo, kYes };
struct LinearSpec {
  int64_t in = 0;
  std::vector<Piece> out;
  Cut cut = Cut::kNone;
  Matrix matrix = Matrix::kOutIn;
  Bias bias = Bias::kNo;
  float std = 0;
};
Operator Linear(const LinearSpec& spec);

// Of rows [queries | keys | values] (kernels/attention.h).
struct HeadsSpec {
  int heads = 0, kv_heads = 0, head_dim = 0;
  float dropout = 0;
  int window = 0;  // keys that a query sees at most, the last one its own token's; 0: all
};
Operator Attention(const HeadsSpec& spec);
Operator Rope(const HeadsSpec& spec, const RopeConfig& rope);
// RMSNorm of each head, with a gamma for all heads of queries and one for those of keys.
Operator HeadNorm(const HeadsSpec& spec, const std::string& queries, const std::string& keys,
                  float epsilon);

Operator Gelu(int64_t width, GeluForm form = GeluForm::kTanh);
Operator SwiGlu(int64_t width);  // of [gate | up], 2 width floats
Operator Residual(int64_t width, float dropout, int dropout_id);

// After the layers: a norm, the matrix of all tokens, `tied` or under its own name, and the loss.
struct HeadSpec {
  std::string name;
  int64_t width = 0, vocabulary = 0;
  bool tied = false;
  float std = 0;
};
std::vector<Operator> NormAndHead(const Operator& norm, const HeadSpec& spec);

// The keys that a query of an Attention sees at most, in sequences of `sequence_length` tokens. If
// they are fewer than a sequence has, the device holds a list of first keys.
int MostKeys(const Operator& op, int sequence_length);

// Multiply-add pairs of one token's forward, in sequences of `sequence_length` tokens; and those of
// a Linear's adapters alone.
double MultiplyAdds(const Operator& op, int sequence_length);
double AdapterMultiplyAdds(const Operator& op);

}  // namespace pp
