// The kernels of a GPU, launched into one stream, and some products into a second one beside it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "runtime/device/cuda/driver.h"
#include "runtime/device/kernels.h"
#include "schema/model/layout.h"

namespace pp {

struct CudaKernelsOptions {
  // For products, as in products.h.
  const GemmTable* gemms = nullptr;
  bool fuses_gelu = true;
  CudaDriver::Stream second = nullptr;  // of Kernels::MultiplyBeside; null: none
  // So many calls may be ahead of the device, at most: a stream has room for some thousand
  // launches, and a launch that waits for room, behind what waits for another rank, holds up other
  // threads' launches, for which that rank may wait. 0: any number.
  int most_ahead = 0;
  std::span<std::byte> dead;
  std::function<void(const std::string&)> note = [](const std::string&) {};
  bool stochastic_rounding = false;  // of a bf16 job's weights for products (kernels/round.h)
};

// `workspace`: WorkspaceOf(job), on the device. Throws std::bad_alloc if the host has no memory.
// REQUIRES: the job counts a GPU's memory.
std::unique_ptr<Kernels> MakeCudaKernels(CudaDriver* driver, CudaDriver::Stream stream,
                                         const Job& job, std::byte* workspace,
                                         const CudaKernelsOptions& options);

}  // namespace pp
