#include "schema/model/workspace.h"

#include <algorithm>

#include "kernels/workspace.h"
#include "schema/model/families.h"
#include "schema/model/placing.h"

namespace pp {
namespace {

// Of one tensor-parallel peer. `angles`: floats of a Rope's angles.
kernels::WorkspaceShape ShapeOf(const Job& job, int64_t* angles) {
  kernels::WorkspaceShape shape;
  const ModelTable table = PartOf(TableOf(job.model), job.tp);
  for (const auto* operators : {&table.first, &table.layer, &table.last}) {
    int64_t biases = 0;
    for (const Operator& op : *operators) {
      if (op.kind == OperatorKind::kNorm)
        shape.norm_channels = std::max(shape.norm_channels, op.in);
      if (op.kind == OperatorKind::kHeadNorm)
        shape.norm_channels = std::max(shape.norm_channels, int64_t{op.head_dim});
      if (op.kind == OperatorKind::kLinear && op.parameters.size() > 1) biases += op.out;
      if (op.kind == OperatorKind::kRope) *angles = int64_t{job.sequence_length} * op.head_dim;
      if (op.kind == OperatorKind::kAttention)
        shape.attention = {job.micro_batch_size, job.sequence_length, op.heads, op.head_dim,
                           op.kv_heads};
    }
    shape.bias_columns = std::max(shape.bias_columns, biases);
  }
  return shape;
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
  int64_t angles = 0;
  const kernels::WorkspaceShape shape = ShapeOf(job, &angles);
  Workspace workspace;
  workspace.kernel_bytes = KernelBytes(job, shape);
  if (job.backend == DeviceKind::kCuda)
    workspace.product_bytes = kernels::cuda::kProductBytes + kernels::cuda::kProductAlign;
  Places places;
  workspace.angles = places.Take(angles);
  workspace.kernels = places.Take(workspace.kernel_bytes / 4);
  workspace.products = places.Take(workspace.product_bytes / 4);
  workspace.bytes = places.end();
  return workspace;
}

}  // namespace pp
