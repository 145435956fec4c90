// Computes the stages of a rank's device, with kernels of any kind. See stage_model.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/device/kernels.h"
#include "runtime/device/peers.h"
#include "runtime/device/stage_call.h"
#include "runtime/model/optimizer.h"
#include "schema/program.h"

namespace pp {

struct ExecutorArgs {
  const Program* program = nullptr;  // has a job; remains the caller's
  int device = 0;
  int replica = 0;
  int index = 0;           // among tensor-parallel peers
  Peers* peers = nullptr;  // null: there are none
  uint64_t seed = 1;       // of dropout
  OptimizerOptions optimizer;
  std::atomic<int64_t>* operators = nullptr;  // counts those that it has started; may be null
};

std::unique_ptr<StageExecutor> MakeExecutor(const ExecutorArgs& args,
                                            std::unique_ptr<Kernels> kernels);

}  // namespace pp
