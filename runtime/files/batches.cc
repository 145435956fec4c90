#include "runtime/files/batches.h"

#include <algorithm>

namespace pp {

int64_t Batches::InFile(int64_t sequence) const {
  if (args_.repeat_after > 0) return sequence % (args_.repeat_after * PerStep());
  if (args_.epochs == 0) return sequence;
  const int64_t in_epoch = sequence % (StepsPerEpoch() * PerStep());
  return in_epoch < args_.dataset->sequences() ? in_epoch : -1;
}

int64_t Batches::Tokens(int64_t step) const {
  int64_t sequences = PerStep();
  if (args_.epochs > 0) {
    const int64_t before = args_.sequences_before / PerStep();
    const int64_t first = (before + step - 1) % StepsPerEpoch() * PerStep();
    sequences = std::min(sequences, args_.dataset->sequences() - first);
  }
  return sequences * args_.sequence_length;
}

Status Batches::Inputs(int64_t step, int replica, int micro, int32_t* inputs) const {
  const int64_t first = FirstSequence(step, replica, micro);
  for (int b = 0; b < args_.micro_batch_size; ++b, inputs += args_.sequence_length) {
    const int64_t n = InFile(first + b);
    if (n < 0) {
      std::fill_n(inputs, args_.sequence_length, 0);
    } else {
      PP_RETURN_IF_ERROR(args_.dataset->Inputs(n, inputs));
    }
  }
  return {};
}

Status Batches::Targets(int64_t step, int replica, int micro, int32_t* targets) const {
  const int64_t first = FirstSequence(step, replica, micro);
  for (int b = 0; b < args_.micro_batch_size; ++b, targets += args_.sequence_length) {
    const int64_t n = InFile(first + b);
    if (n < 0) {
      std::fill_n(targets, args_.sequence_length, -1);
    } else {
      PP_RETURN_IF_ERROR(args_.dataset->Targets(n, targets));
    }
  }
  return {};
}

}  // namespace pp
