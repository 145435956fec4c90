// From a job to the shape of its attention, the same in all layers, on one tensor-parallel peer.
#pragma once

#include "kernels/attention.h"
#include "schema/model/families.h"
#include "schema/model/job.h"

namespace pp {

inline kernels::AttentionShape AttentionShapeOf(const Job& job) {
  for (const Operator& op : PartOf(TableOf(job.model), job.tp).layer)
    if (op.kind == OperatorKind::kAttention)
      return {job.micro_batch_size, job.sequence_length, op.heads, op.head_dim, op.kv_heads};
  return {};
}

}  // namespace pp
