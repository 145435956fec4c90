#include "schema/model/operators.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace pp {
namespace {

Parameter Vector(const std::string& name, int64_t size, float mean) {
  return {.pieces = {{name, size}}, .cols = size, .mean = mean};
}

Parameter Table(const std::string& name, int64_t rows, int64_t cols, float std) {
  return {.pieces = {{name, rows}}, .rows = rows, .cols = cols, .matrix = true, .std = std};
}

Piece Tokens(int64_t vocabulary, const std::string& name = "") { return {name, vocabulary, 16}; }

// A row for each token.
Parameter TokenTable(const std::string& name, int64_t vocabulary, int64_t cols, float std) {
  Parameter table = Table(name, vocabulary, cols, std);
  table.pieces = {Tokens(vocabulary, name)};
  table.rows = PartOf(table.pieces[0], 1);
  table.cut = Cut::kOut;
  return table;
}

// Of all of a parameter's pieces.
int64_t PartOf(const std::vector<Piece>& pieces, int tp) {
  int64_t part = 0;
  for (const Piece& piece : pieces) part += PartOf(piece, tp);
  return part;
}

Operator PartOf(Operator op, int tp) {
  if (tp == 1) return op;
  for (Parameter& parameter : op.parameters) {
    if (parameter.cut == Cut::kNone) continue;
    const bool columns = !parameter.matrix || parameter.across == (parameter.cut == Cut::kOut);
    int64_t& side = columns ? parameter.cols : parameter.rows;
    side = parameter.cut == Cut::kIn ? side / tp : PartOf(parameter.pieces, tp);
  }
  switch (op.kind) {
    case OperatorKind::kEmbedding:
    case OperatorKind::kNorm:
    case OperatorKind::kResidual:
      return op;
    case OperatorKind::kLinear:
      if (op.cut == Cut::kIn) op.in /= tp;
      if (op.cut != Cut::kOut) return op;
      op.out = PartOf(op.parameters[0].pieces, tp);
      for (Adapter& adapter : op.adapters) adapter.first /= tp, adapter.out /= tp;
      return op;
    case OperatorKind::kLoss:
      op.in = PartOf(Tokens(op.in), tp);
      return op;
    case OperatorKind::kHeadNorm:
    case OperatorKind::kRope:
    case OperatorKind::kAttention:
    case OperatorKind::kGelu:
    case OperatorKind::kSwiGlu:
      op.in /= tp;
      op.out /= tp;
      op.heads /= tp;
      op.kv_heads /= tp;
      return op;
  }
  PP_CHECK(false);
}

}  // namespace

int64_t PartOf(const Piece& piece, int64_t tp) {
  const int64_t wholes = tp * piece.multiple;
  return (piece.size + wholes - 1) / wholes * piece.multiple;
}

ModelTable PartOf(const ModelTable& table, int tp) {
  ModelTable part = table;
  for (std::vector<Operator>* operators : {&part.first, &part.layer, &part.last})
    for (Operator& op : *operators) op = PartOf(std::move(op), tp);
  return part;
}

int TensorParallelLimit(const ModelTable& table) {
  int64_t limit = 0;
  for (const Operator& op : table.layer) {
    if (op.cut == Cut::kNone) continue;
    if (op.cut == Cut::kIn) limit = std::gcd(limit, op.in);
    limit = std::gcd(std::gcd(limit, op.heads), op.kv_heads);
    for (const Parameter& parameter : op.parameters)
      for (const Piece& piece : parameter.pieces)
        if (parameter.cut == Cut::kOut) limit = std::gcd(limit, piece.size);
  }
  return static_cast<int>(limit);
}

Operator Embedding(const EmbeddingSpec& spec) {
  Operator op = {.kind = OperatorKind::kEmbedding,
                 .out = spec.width,
                 .parameters = {TokenTable(spec.token_name, spec.vocabulary, spec.width, spec.std)},
                 .cut = Cut::kOut,
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
          .parameters = {Vector(name + ".weight", width, 1)},
          .epsilon = epsilon};
}

Operator Linear(const LinearSpec& spec) {
  Parameter weight = {.across = spec.matrix == Matrix::kInOut,
                      .cut = spec.cut,
                      .cols = spec.in,
                      .matrix = true,
                      .std = spec.std};
  Parameter bias = {.cut = spec.cut == Cut::kOut ? Cut::kOut : Cut::kNone};
  int64_t out = 0;
  for (const Piece& piece : spec.out) {
    weight.pieces.push_back({piece.name + ".weight", piece.size});
    bias.pieces.push_back({piece.name + ".bias", piece.size});
    out += piece.size;
  }
  weight.rows = out;
  bias.cols = out;
  if (weight.across) std::swap(weight.rows, weight.cols);
  Operator op = {.kind = OperatorKind::kLinear,
                 .in = spec.in,
                 .out = out,
                 .parameters = {std::move(weight)},
                 .matrix = spec.matrix,
                 .cut = spec.cut};
  if (spec.bias == Bias::kYes) op.parameters.push_back(std::move(bias));
  return op;
}

Operator Attention(const HeadsSpec& spec) {
  const int64_t out = int64_t{spec.heads} * spec.head_dim;
  return {.kind = OperatorKind::kAttention,
          .in = out + 2 * int64_t{spec.kv_heads} * spec.head_dim,
          .out = out,
          .cut = Cut::kOut,
          .heads = spec.heads,
          .kv_heads = spec.kv_heads,
          .head_dim = spec.head_dim,
          .window = spec.window,
          .dropout = spec.dropout,
          .dropout_id = 0};
}

Operator Rope(const HeadsSpec& spec, const RopeConfig& rope) {
  const int64_t width = int64_t{spec.heads + 2 * spec.kv_heads} * spec.head_dim;
  return {.kind = OperatorKind::kRope,
          .in = width,
          .out = width,
          .cut = Cut::kOut,
          .heads = spec.heads,
          .kv_heads = spec.kv_heads,
          .head_dim = spec.head_dim,
          .rope = rope};
}

Operator HeadNorm(const HeadsSpec& spec, const std::string& queries, const std::string& keys,
                  float epsilon) {
  const int64_t width = int64_t{spec.heads + 2 * spec.kv_heads} * spec.head_dim;
  return {.kind = OperatorKind::kHeadNorm,
          .in = width,
          .out = width,
          .parameters = {Vector(queries + ".weight", spec.head_dim, 1),
                         Vector(keys + ".weight", spec.head_dim, 1)},
          .cut = Cut::kOut,
          .heads = spec.heads,
          .kv_heads = spec.kv_heads,
          .head_dim = spec.head_dim,
          .epsilon = epsilon};
}

Operator Gelu(int64_t width, GeluForm form) {
  return {.kind = OperatorKind::kGelu, .in = width, .out = width, .cut = Cut::kOut, .gelu = form};
}

Operator SwiGlu(int64_t width) {
  return {.kind = OperatorKind::kSwiGlu, .in = 2 * width, .out = width, .cut = Cut::kOut};
}

Operator Residual(int64_t width, float dropout, int dropout_id) {
  return {.kind = OperatorKind::kResidual,
          .in = width,
          .out = width,
          .dropout = dropout,
          .dropout_id = dropout_id};
}

std::vector<Operator> NormAndHead(const Operator& norm, const HeadSpec& spec) {
  const int64_t room = PartOf(Tokens(spec.vocabulary), 1);
  Operator head = {.kind = OperatorKind::kLinear,
                   .in = spec.width,
                   .out = room,
                   .parameters = {TokenTable(spec.name, spec.vocabulary, spec.width, spec.std)},
                   .matrix = Matrix::kOutIn,
                   .cut = Cut::kOut};
  head.parameters[0].tied = spec.tied;
  return {norm, head, {.kind = OperatorKind::kLoss, .in = room, .cut = Cut::kOut}};
}

int MostKeys(const Operator& op, int sequence_length) {
  return op.window == 0 ? sequence_length : std::min(op.window, sequence_length);
}

double AdapterMultiplyAdds(const Operator& op) {
  double all = 0;
  for (const Adapter& adapter : op.adapters)
    all += static_cast<double>(adapter.rank) * static_cast<double>(op.in + adapter.out);
  return all;
}

double MultiplyAdds(const Operator& op, int sequence_length) {
  switch (op.kind) {
    case OperatorKind::kLinear:
      return static_cast<double>(op.in) * static_cast<double>(op.out) + AdapterMultiplyAdds(op);
    case OperatorKind::kAttention: {
      // Two products with half of the keys, but for those further back than the window.
      const double all = sequence_length, hidden = all - MostKeys(op, sequence_length);
      return static_cast<double>(op.out) * (all - hidden * hidden / all);
    }
    case OperatorKind::kEmbedding:
    case OperatorKind::kNorm:
    case OperatorKind::kHeadNorm:
    case OperatorKind::kRope:
    case OperatorKind::kGelu:
    case OperatorKind::kSwiGlu:
    case OperatorKind::kResidual:
    case OperatorKind::kLoss:
      return 0;  // negligible compared with those
  }
  PP_CHECK(false);
}

}  // namespace pp
