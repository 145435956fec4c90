// The backend for CPUs: our kernels, in fp32. See transformer.h.
#pragma once

#include <memory>
#include <string>

#include "runtime/device/backend.h"
#include "runtime/files/dataset.h"
#include "schema/program.h"

namespace pp {

struct CpuBackendArgs {
  const Program* program = nullptr;  // has a job; stays the caller's
  int device = 0;
  const Dataset* dataset = nullptr;  // stays the caller's
  uint64_t seed = 1;
  int threads = 1;
  double weight_decay = 0;
  std::string weights;  // a folder with model.safetensors; empty: a new model
};

// To be made and used on one thread, which it gives `threads` helpers.
std::unique_ptr<Backend> MakeCpuBackend(const CpuBackendArgs& args);

}  // namespace pp
