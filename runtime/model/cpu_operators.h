// The operators of a stage by our CPU kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/matmul.h"
#include "runtime/device/peers.h"
#include "runtime/model/stage_model.h"
#include "schema/model/layout.h"

namespace pp {

// What the stages of one rank share: prepared matrix products, and the kernels' working space of
// all threads but the first, whose is in scratch.
class Workspace {
 public:
  Workspace(const Job& job, int threads);

  kernels::cpu::Matmul& matmul() { return matmul_; }
  void* helpers();

 private:
  kernels::cpu::Matmul matmul_;
  std::vector<std::byte> helpers_;
};

// A rank among its tensor parallel peers. Null: it has none.
struct PeerGroup {
  int index = 0;
  Peers* peers = nullptr;
};

// `seed` is that of dropout. The workspace stays the caller's, who may give it to several stages
// that never run at the same time.
// REQUIRES: CheckJob(job).ok().
StageModel MakeCpuStage(const Job& job, int stage, uint64_t seed, Workspace* workspace,
                        const PeerGroup& group = {});

}  // namespace pp
