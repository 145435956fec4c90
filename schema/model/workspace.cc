#include "schema/model/workspace.h"

#include <algorithm>

#include "kernels/workspace.h"
#include "schema/model/families.h"
#include "schema/model/placing.h"

namespace pp {
namespace {

// What the operators of one tensor-parallel peer need.
struct Needs {
  kernels::WorkspaceShape shape;
  int64_t angles = 0, first_keys = 0;  // floats, int32s
};

Needs NeedsOf(const Job& job) {
  Needs needs;
  kernels::WorkspaceShape& shape = needs.shape;
  const ModelTable table = PartOf(TableOf(job), job.tp);
  for (const auto* operators : {&table.first, &table.layer, &table.last}) {
    int64_t biases = 0;
    for (const Operator& op : *operators) {
      if (op.kind == OperatorKind::kNorm)
        shape.norm_channels = std::max(shape.norm_channels, op.in);
      if (op.kind == OperatorKind::kHeadNorm)
        shape.norm_channels = std::max(shape.norm_channels, int64_t{op.head_dim});
      if (op.kind == OperatorKind::kLinear && op.has_bias() && op.parameters[1].trainable)
        biases += op.out;
      if (op.kind == OperatorKind::kRope) needs.angles = int64_t{job.sequence_length} * op.head_dim;
      if (op.kind == OperatorKind::kAttention) {
        shape.attention = {job.micro_batch_size, job.sequence_length, op.heads, op.head_dim,
                           op.kv_heads};
        if (MostKeys(op, job.sequence_length) < job.sequence_length)
          needs.first_keys = job.sequence_length;
      }
    }
    shape.bias_columns = std::max(shape.bias_columns, biases);
  }
  return needs;
}

int64_t KernelBytes(const Job& job, const kernels::WorkspaceShape& shape) {
  if (job.backend == DeviceKind::kCuda) return kernels::cuda::WorkspaceBytes(shape);
  switch (job.dtype) {
    case Dtype::kFp32:
      return kernels::cpu::WorkspaceBytes<float>(shape);
    case Dtype::kBf16:
      return kernels::cpu::WorkspaceBytes<kernels::BFloat16>(shape);
    case Dtype::kFp16:
      return kernels::cpu::WorkspaceBytes<kernels::Float16>(shape);
  }
  PP_CHECK(false);
}

}  // namespace

Workspace WorkspaceOf(const Job& job) {
  const Needs needs = NeedsOf(job);  // of the longest sequences
  Workspace workspace;
  for (int shape = 0; shape < job.shapes.count(); ++shape) {
    const Job one = job.OfShape(shape);
    workspace.kernel_bytes = std::max(workspace.kernel_bytes, KernelBytes(one, NeedsOf(one).shape));
  }
  if (job.backend == DeviceKind::kCuda)
    workspace.product_bytes = kernels::cuda::kProductStreams * kernels::cuda::kProductBytes +
                              kernels::cuda::kProductAlign;
  Places places;
  workspace.angles = places.Take(needs.angles);
  workspace.first_keys = places.Take(needs.first_keys);
  workspace.documents = places.Take(job.documents ? 2 * job.most_tokens() : 0);
  workspace.kernels = places.Take(workspace.kernel_bytes / 4);
  workspace.products = places.Take(workspace.product_bytes / 4);
  workspace.bytes = places.end();
  return workspace;
}

}  // namespace pp
