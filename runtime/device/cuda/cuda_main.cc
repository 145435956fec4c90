// The entry of the library that is the CUDA backend.
#include <memory>
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
  backend->make_device = [used = std::make_shared<pp::UsedGpus>()](int gpu,
                                                                   pp::CudaDeviceArgs args) {
    used->Add(gpu);
    pp::CudaExperiments& experiments = args.experiments;
    if (experiments.spare < 0) experiments.spare = args.nccl != nullptr ? pp::kNcclBlocks : 0;
    auto driver = pp::MakeCudaDriver(gpu, experiments);
    return pp::MakeCudaDevice(std::move(driver), std::move(args));
  };
  backend->tune = [](int gpu, const std::vector<pp::kernels::MatmulShape>& shapes,
                     const pp::CudaExperiments& experiments) {
    return pp::TuneGemms(pp::MakeCudaDriver(gpu, experiments).get(), shapes, experiments);
  };
}
