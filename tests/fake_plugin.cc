// What piperun loads for --backend cuda and for --transport nccl, over fakes (fake_cuda.h,
// fake_nccl.h): its real path from the command line to a GPU, without one. The environment's
// FAKE_GPUS says how many GPUs a host has, and, if FAKE_REFUSES is set, they have no products.
// Between threads of one process there is a fake of NCCL; between processes it gets as far as what
// is refused before the first communicator.
#include <cstdlib>
#include <limits>
#include <utility>

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/cuda_plugin.h"
#include "runtime/device/cuda/gemm_tuner.h"
#include "tests/fake_cuda.h"
#include "tests/fake_nccl.h"

namespace {

std::unique_ptr<pp::CudaDriver> MakeDriver(int gpu) {
  pp::FakeCudaArgs fake{.seed = static_cast<unsigned>(gpu + 1)};
  if (std::getenv("FAKE_REFUSES") != nullptr)
    fake.refuses = [](const pp::kernels::MatmulShape&) { return true; };
  return pp::MakeFakeCuda(fake);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void pp_open_cuda(pp::CudaBackend* backend) {
  const char* gpus = std::getenv("FAKE_GPUS");
  for (int gpu = 0; gpu < (gpus != nullptr ? std::atoi(gpus) : 1); ++gpu)
    backend->gpus.push_back(1000 + gpu);
  backend->make_device = [](int gpu, pp::CudaDeviceArgs args) {
    return pp::MakeCudaDevice(MakeDriver(gpu), std::move(args));
  };
  backend->tune = [](int gpu, const std::vector<pp::kernels::MatmulShape>& shapes,
                     const pp::CudaExperiments& experiments) {
    return pp::TuneGemms(MakeDriver(gpu).get(), shapes, experiments);
  };
}

extern "C" __attribute__((visibility("default"))) void pp_open_nccl(pp::NcclBackend* backend) {
  backend->make = [world = pp::MakeFakeNcclWorld(std::numeric_limits<int>::max())] {
    return pp::MakeFakeNccl(world);
  };
}
