// The entry of the library that is NCCL.
#include "runtime/device/cuda/cuda_plugin.h"
#include "runtime/device/cuda/nccl_driver.h"

extern "C" __attribute__((visibility("default"))) void pp_open_nccl(pp::NcclBackend* backend) {
  backend->make = pp::MakeNccl;
}
