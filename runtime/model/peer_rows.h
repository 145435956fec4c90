// The rows of a stage that a rank has, and what it exchanges about them with its tensor-parallel
// peers. Without sequence parallelism it has all of them; with it, after a sum, only its own: equal
// parts, one per peer.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"
#include "runtime/device/peers.h"
#include "runtime/model/operators.h"
#include "schema/model/layout.h"

namespace pp {

// N: the type of activations. An exchange is over after Settle.
template <typename N>
class PeerRows {
 public:
  PeerRows(const Job& job, const PeerGroup& group)
      : group_(group),
        dtype_(job.dtype),
        all_(job.tokens()),
        own_(job.stream_tokens()),
        sequence_(job.sequence_length),
        shares_(job.sequence_parallel) {
    PP_CHECK((job.tp > 1) == (group.peers != nullptr));
  }

  int index() const { return group_.index; }
  bool shares() const { return shares_; }
  int64_t own_rows() const { return own_; }

  // Of all rows, this peer's own.
  N* Own(N* all, int64_t width) const { return shares_ ? all + group_.index * own_ * width : all; }
  kernels::MaskedRange OwnRange(int64_t width) const {
    return {shares_ ? group_.index * own_ * width : 0, own_ * width, sequence_ * width};
  }

  // Begins to sum all rows over the peers; the result is all of them, or only this peer's own.
  void Sum(N* rows, int64_t width) const {
    if (group_.peers == nullptr) return;
    group_.peers->Start({shares_ ? PeerWork::kScatter : PeerWork::kSum, all_ * width, dtype_},
                        rows);
  }
  // Begins to fetch the other peers' own rows.
  void Gather(N* rows, int64_t width) const {
    if (shares_) group_.peers->Start({PeerWork::kGather, all_ * width, dtype_}, rows);
  }
  // Begins to sum all rows, for all peers. REQUIRES: there are some.
  void SumAll(N* rows, int64_t width) const {
    group_.peers->Start({PeerWork::kSum, all_ * width, dtype_}, rows);
  }
  // Begins to sum fp32 elements. REQUIRES: there are peers.
  void SumNumbers(float* numbers, int64_t n) const {
    group_.peers->Start({PeerWork::kSum, n}, numbers);
  }
  void Settle() const {
    if (group_.peers != nullptr) group_.peers->Wait();
  }

 private:
  const PeerGroup group_;
  const Dtype dtype_;
  const int64_t all_, own_, sequence_;  // rows
  const bool shares_;                   // sequence parallelism
};

}  // namespace pp
