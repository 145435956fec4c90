#include "runtime/device/first_keys.h"

#include <algorithm>

#include "schema/model/families.h"

namespace pp {

std::vector<int32_t> FirstKeys(const Job& job) {
  int most = job.sequence_length;
  for (const Operator& op : TableOf(job.model).layer)
    if (op.kind == OperatorKind::kAttention) most = MostKeys(op, job.sequence_length);
  if (most == job.sequence_length) return {};
  std::vector<int32_t> keys(job.sequence_length);
  for (int t = 0; t < job.sequence_length; ++t) keys[t] = std::max(0, t - most + 1);
  return keys;
}

}  // namespace pp
