#include "schema/model/work.h"

namespace pp {

StageWork WorkOf(const Operator& op, const Job& job) {
  // A peer may have only its share of the stream.
  const bool shares = op.kind == OperatorKind::kNorm || op.kind == OperatorKind::kResidual;
  const auto n = static_cast<double>(shares ? job.stream_tokens() : job.tokens());
  const double forward = 2 * n * MultiplyAdds(op, job.attention_length());
  double parameters = 0, trained = 0;
  for (const Parameter& parameter : op.parameters) {
    const double size = static_cast<double>(parameter.rows) * static_cast<double>(parameter.cols);
    parameters += size;
    if (parameter.trainable) trained += size;
  }
  const auto each = static_cast<double>(BytesOf(job.dtype));
  const double in = each * n * static_cast<double>(op.in);
  const double out = each * n * static_cast<double>(op.out);
  StageWork work;
  work.forward = {forward, in + out + 4 * parameters};
  work.recompute = work.forward;
  switch (op.kind) {
    case OperatorKind::kLinear:
      work.input = {forward, in + out + 4 * parameters};
      // Of adapters also what is between their two products, again.
      if (op.trains())
        work.weight = {op.adapters.empty() ? forward : 4 * n * AdapterMultiplyAdds(op),
                       in + out + 8 * trained};
      break;
    case OperatorKind::kAttention:  // reads its input, its output and the gradient of that
      work.input = {2.5 * forward, 2 * in + 2 * out};
      break;
    case OperatorKind::kEmbedding:  // rows of its tokens, read and written
      work.forward.bytes = work.recompute.bytes = 2 * out;
      if (op.trains()) work.weight = {0, 3 * out};
      break;
    case OperatorKind::kNorm:  // adds to the stream's gradient
      work.input = {0, 3 * in + out + 4 * parameters};
      work.weight = {0, 8 * trained};
      break;
    case OperatorKind::kResidual:
      work.forward.bytes = work.recompute.bytes = 2 * in + out;
      if (op.dropout > 0 || job.sequence_parallel) work.input = {0, in + out};
      break;
    case OperatorKind::kHeadNorm:
      work.weight = {0, 8 * trained};
      [[fallthrough]];
    case OperatorKind::kRope:
    case OperatorKind::kGelu:
    case OperatorKind::kSwiGlu:
      work.input = {0, 2 * in + out};
      break;
    case OperatorKind::kLoss:  // writes the gradient of what it reads
      work.forward.bytes = work.recompute.bytes = 2 * in;
      break;
  }
  return work;
}

StageWork WorkOf(const StageLayout& layout, const Job& job) {
  StageWork sum;
  for (const StageOperator& placed : layout.operators) {
    const StageWork one = WorkOf(placed.op, job);
    sum.forward += one.forward;
    if (placed.recomputed) sum.recompute += one.recompute;
    sum.input += one.input;
    sum.weight += one.weight;
    if (placed.remade) sum.weight += one.forward;
  }
  return sum;
}

}  // namespace pp
