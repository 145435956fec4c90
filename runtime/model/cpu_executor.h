// Computes stages on CPUs: our kernels, in fp32. See stage_model.h.
#pragma once

#include <memory>

#include "runtime/device/peers.h"
#include "runtime/device/stage_call.h"
#include "runtime/model/optimizer.h"
#include "schema/program.h"

namespace pp {

struct CpuExecutorArgs {
  const Program* program = nullptr;  // has a job; stays the caller's
  int device = 0;
  int replica = 0;
  int index = 0;           // among tensor parallel peers
  Peers* peers = nullptr;  // null: there are none
  uint64_t seed = 1;       // of dropout
  int threads = 1;
  OptimizerOptions optimizer;
};

// To be made on the thread that uses it, which it gives `threads` helpers. Throws std::bad_alloc or
// std::system_error where the machine has no memory or no thread left.
std::unique_ptr<StageExecutor> MakeCpuExecutor(const CpuExecutorArgs& args);

}  // namespace pp
