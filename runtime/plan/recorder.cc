#include "runtime/plan/recorder.h"

#include <algorithm>

namespace pp {

void Recorder::Reserve(int64_t per_step, int64_t body, int64_t steps) {
  last_step_ = std::min(steps, std::max<int64_t>(1, kMaxEvents / std::max<int64_t>(1, body)));
  events_.reserve(last_step_ * per_step);
}

}  // namespace pp
