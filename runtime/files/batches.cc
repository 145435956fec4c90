#include "runtime/files/batches.h"

#include <algorithm>

namespace pp {

Batches::Batches(const Args& args) : args_(args) {
  if (args.epochs > 0) pass_ = args.dataset->sequences();
  if (args.repeat_after > 0)
    pass_ = std::min(args.dataset->sequences(), args.repeat_after * PerStep());
}

int64_t Batches::Steps() const {
  const int64_t passes = args_.epochs - args_.from.pass;  // with the one that is under way
  return passes <= 0 ? 0 : StepsFor(pass_ - args_.from.sequence) + (passes - 1) * StepsFor(pass_);
}

Position Batches::Before(int64_t step) const {
  const auto [pass, sequence] = args_.from;
  if (pass_ == 0) {
    const int64_t at = sequence + (step - 1) * PerStep(), all = args_.dataset->sequences();
    return {pass + at / all, at % all};
  }
  const int64_t first = StepsFor(pass_ - sequence), each = StepsFor(pass_);
  const int64_t later = step - 1 - first;  // steps of later passes
  if (later < 0) return {pass, sequence + (step - 1) * PerStep()};
  return {pass + 1 + later / each, later % each * PerStep()};
}

int64_t Batches::InFile(int64_t sequence) const {
  if (pass_ == 0) return sequence;
  return sequence < pass_ ? sequence : -1;
}

int64_t Batches::Tokens(int64_t step) const {
  const int64_t first = Before(step).sequence, all = args_.dataset->sequences();
  const int64_t count = pass_ == 0 ? PerStep() : std::min(PerStep(), pass_ - first);
  const int64_t ends = (first + count) / all;  // how often the file's last sequence is among them
  return count * args_.sequence_length - ends * args_.dataset->missing();
}

double Batches::PerToken(int64_t step) const {
  const int64_t tokens = Tokens(step);
  return tokens == 0 ? 0 : 1 / static_cast<double>(tokens);
}

Status Batches::Inputs(int64_t step, int replica, int micro, int32_t* inputs) const {
  const int64_t first = InPass(step, replica, micro);
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
  const int64_t first = InPass(step, replica, micro);
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
