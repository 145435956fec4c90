// The entry of the library that is the CUDA backend.
#include <utility>

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/cuda_driver.h"
#include "runtime/device/cuda/cuda_plugin.h"
#include "runtime/device/cuda/gemm_tuner.h"

extern "C" __attribute__((visibility("default"))) void pp_open_cuda(pp::CudaBackend* backend) {
  pp::Result<std::vector<uint64_t>> gpus = pp::FindGpus();
  backend->status = gpus.status();
  if (!gpus.ok()) return;
  backend->gpus = std::move(*gpus);
  backend->make_device = [](int gpu, pp::CudaDeviceArgs args) {
    return pp::MakeCudaDevice(pp::MakeCudaDriver(gpu), std::move(args));
  };
  backend->tune = [](int gpu, const std::vector<pp::kernels::MatmulShape>& shapes) {
    return pp::TuneGemms(pp::MakeCudaDriver(gpu).get(), shapes);
  };
}
