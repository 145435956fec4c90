#include "schema/model/operators.h"

namespace pp {
namespace {

Parameter Vector(const std::string& name, int64_t size, float mean) {
  return {.pieces = {{name, size}}, .cols = size, .mean = mean};
}

Parameter Table(const std::string& name, int64_t rows, int64_t cols, float std) {
  return {.pieces = {{name, rows}}, .rows = rows, .cols = cols, .matrix = true, .std = std};
}

}  // namespace

Operator Embedding(const EmbeddingSpec& spec) {
  Operator op = {.kind = OperatorKind::kEmbedding,
                 .out = spec.width,
                 .stride = spec.width,
                 .parameters = {Table(spec.token_name, spec.vocabulary, spec.width, spec.std)},
                 .dropout = spec.dropout,
                 .dropout_id = 7};
  if (!spec.position_name.empty())
    op.parameters.push_back(Table(spec.position_name, spec.positions, spec.width, spec.std));
  return op;
}

Operator LayerNorm(const std::string& name, int64_t width, float epsilon) {
  Operator op = RmsNorm(name, width, epsilon);
  op.parameters.push_back(Vector(name + ".bias", width, 0));
  return op;
}

Operator RmsNorm(const std::string& name, int64_t width, float epsilon) {
  return {.kind = OperatorKind::kNorm,
          .in = width,
          .out = width,
          .stride = width,
          .parameters = {Vector(name + ".weight", width, 1)},
          .epsilon = epsilon};
}

Operator Linear(const LinearSpec& spec) {
  Parameter weight = {.cols = spec.in, .matrix = true, .std = spec.std};
  Parameter bias;
  int64_t out = 0;
  for (const Piece& piece : spec.out) {
    weight.pieces.push_back({piece.name + ".weight", piece.size});
    bias.pieces.push_back({piece.name + ".bias", piece.size});
    out += piece.size;
  }
  weight.rows = out;
  bias.cols = out;
  if (spec.matrix == Matrix::kInOut) {
    PP_CHECK(spec.out.size() == 1);
    std::swap(weight.rows, weight.cols);
    weight.pieces[0].size = spec.in;
  }
  Operator op = {.kind = OperatorKind::kLinear,
                 .in = spec.in,
                 .out = out,
                 .stride = out,
                 .parameters = {std::move(weight)},
                 .matrix = spec.matrix};
  if (spec.bias == Bias::kYes) op.parameters.push_back(std::move(bias));
  return op;
}

Operator Attention(const HeadsSpec& spec) {
  const int64_t out = int64_t{spec.heads} * spec.head_dim;
  return {.kind = OperatorKind::kAttention,
          .in = out + 2 * int64_t{spec.kv_heads} * spec.head_dim,
          .out = out,
          .stride = out,
          .heads = spec.heads,
          .kv_heads = spec.kv_heads,
          .head_dim = spec.head_dim,
          .dropout = spec.dropout,
          .dropout_id = 0};
}

Operator Rope(const HeadsSpec& spec, const RopeConfig& rope) {
  const int64_t width = int64_t{spec.heads + 2 * spec.kv_heads} * spec.head_dim;
  return {.kind = OperatorKind::kRope,
          .in = width,
          .out = width,
          .stride = width,
          .heads = spec.heads,
          .kv_heads = spec.kv_heads,
          .head_dim = spec.head_dim,
          .rope = rope};
}

Operator Gelu(int64_t width) {
  return {.kind = OperatorKind::kGelu, .in = width, .out = width, .stride = width};
}

Operator SwiGlu(int64_t width) {
  return {.kind = OperatorKind::kSwiGlu, .in = 2 * width, .out = width, .stride = width};
}

Operator Residual(int64_t width, float dropout, int dropout_id) {
  return {.kind = OperatorKind::kResidual,
          .in = width,
          .out = width,
          .stride = width,
          .dropout = dropout,
          .dropout_id = dropout_id};
}

std::vector<Operator> HeadAndLoss(const HeadSpec& spec) {
  const int64_t stride = (spec.vocabulary + 15) / 16 * 16;  // whole cache lines
  Operator head = {.kind = OperatorKind::kLinear,
                   .in = spec.width,
                   .out = spec.vocabulary,
                   .stride = stride,
                   .parameters = {Table(spec.name, spec.vocabulary, spec.width, spec.std)},
                   .matrix = Matrix::kOutIn};
  head.parameters[0].tied = spec.tied;
  return {head, {.kind = OperatorKind::kLoss, .in = spec.vocabulary, .stride = stride}};
}

double MultiplyAdds(const Operator& op, int sequence_length) {
  switch (op.kind) {
    case OperatorKind::kLinear:
      return static_cast<double>(op.in) * static_cast<double>(op.out);
    case OperatorKind::kAttention:  // two products with half of the keys
      return static_cast<double>(op.out) * sequence_length;
    case OperatorKind::kEmbedding:
    case OperatorKind::kNorm:
    case OperatorKind::kRope:
    case OperatorKind::kGelu:
    case OperatorKind::kSwiGlu:
    case OperatorKind::kResidual:
    case OperatorKind::kLoss:
      return 0;  // small beside those
  }
  PP_CHECK(false);
}

}  // namespace pp
