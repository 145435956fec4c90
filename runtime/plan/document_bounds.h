// Where the documents begin that are packed in the sequences of a micro-batch, on their way to the
// device: the first key that each query sees and each token's position in its document.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/files/batches.h"

namespace pp {

class DocumentBounds {
 public:
  // `at`: where they are on the device (Workspace::documents); null: the plan has no room for them,
  // and the batches have none. Both remain the caller's.
  DocumentBounds(const Job& job, const Batches* batches, std::byte* at);

  // Has the queue bring those of a micro-batch, unless they are there, and gives the call their
  // places. Nothing, if sequences are not packed documents. Errors: those of Batches.
  Status Bring(int64_t step, int replica, int micro, Queue* queue, StageCall* call);
  // Others may have used the place.
  void Forget() { there_ = {}; }

 private:
  const Batches* const batches_;
  std::byte* const at_;
  const std::vector<int32_t> window_;  // [T]: the first key in the window; empty: none
  std::vector<int32_t> bounds_;        // [2, B, T]: first keys, positions
  std::tuple<int64_t, int, int> there_ = {0, 0, 0};  // step, replica and micro-batch; step 0: none
};

}  // namespace pp
