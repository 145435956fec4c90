// The operators of a stage, computed with the kernels of any device.
#pragma once

#include <cstdint>

#include "runtime/device/kernels.h"
#include "runtime/device/peers.h"
#include "runtime/model/stage_model.h"
#include "schema/model/layout.h"

namespace pp {

// A rank among its tensor-parallel peers. Null: it has none.
struct PeerGroup {
  int index = 0;
  Peers* peers = nullptr;
};

// `seed` is that of dropout. The kernels remain the caller's, who can give them to several stages
// that never run at the same time. REQUIRES: CheckJob(job).ok().
StageModel MakeStage(const Job& job, int stage, uint64_t seed, Kernels* kernels,
                     const PeerGroup& group = {});

}  // namespace pp
