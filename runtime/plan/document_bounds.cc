#include "runtime/plan/document_bounds.h"

#include <algorithm>

#include "runtime/device/first_keys.h"

namespace pp {

DocumentBounds::DocumentBounds(const Job& job, const Batches* batches, std::byte* at)
    : batches_(batches),
      at_(at),
      window_(FirstKeys(job)),
      bounds_(batches->has_documents() ? 2 * job.most_tokens() : 0) {
  PP_CHECK(bounds_.empty() || at != nullptr);
}

Status DocumentBounds::Bring(int64_t step, int replica, int micro, Queue* queue, StageCall* call) {
  if (bounds_.empty()) return {};
  const Extent extent = batches_->ExtentOf(micro);
  const int64_t tokens = extent.all();
  call->first_keys = reinterpret_cast<const int32_t*>(at_);
  call->positions = call->first_keys + tokens;
  if (there_ == std::tuple(step, replica, micro)) return {};
  int32_t *first_keys = bounds_.data(), *positions = first_keys + tokens;
  PP_RETURN_IF_ERROR(batches_->DocumentPositions(step, replica, micro, positions));
  for (int64_t i = 0; i < tokens; ++i) {
    const auto t = static_cast<int32_t>(i % extent.tokens);
    first_keys[i] = std::max(t - positions[i], window_.empty() ? 0 : window_[t]);
  }
  queue->CopyIn(at_, first_keys, 2 * tokens * static_cast<int64_t>(sizeof(int32_t)));
  there_ = {step, replica, micro};
  return {};
}

}  // namespace pp
