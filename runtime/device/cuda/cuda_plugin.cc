// Finds and loads the CUDA backend.
#include "runtime/device/cuda/cuda_plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

namespace pp {

CudaBackend OpenCuda(const std::string& directory) {
  const std::string path = directory + "/" + kCudaPlugin;
  if (access(path.c_str(), R_OK) != 0)
    return {.status = Status::Invalid(
                "--backend: 'cuda' is not in this build (cpu, or build with --config=cuda)")};
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return {.status =
                Status::Invalid(fmt::format("--backend cuda: {} (install CUDA 13)", dlerror()))};
  auto* open = reinterpret_cast<OpenCudaEntry*>(dlsym(library, kCudaEntry));
  if (open == nullptr)
    return {.status = Status::Invalid(
                fmt::format("--backend cuda: {} is not this program's CUDA library", path))};
  CudaBackend backend;
  open(&backend);
  if (!backend.status.ok())
    backend.status =
        Status::Invalid(fmt::format("--backend cuda: {} (cpu)", backend.status.message()));
  return backend;
}

}  // namespace pp
