// The entry of the library that is the CUDA backend.
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/cuda_driver.h"
#include "runtime/device/cuda/cuda_plugin.h"

extern "C" __attribute__((visibility("default"))) void pp_open_cuda(pp::CudaBackend* backend) {
  pp::Result<int> gpus = pp::CountGpus();
  backend->status = gpus.status();
  if (!gpus.ok()) return;
  backend->gpus = *gpus;
  backend->make_device = [](int gpu, const pp::DeviceBells& bells) {
    return pp::MakeCudaDevice(pp::MakeCudaDriver(gpu), bells);
  };
}
