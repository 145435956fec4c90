// Finds and loads the CUDA backend and NCCL.
#include "runtime/device/cuda/cuda_plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

namespace pp {
namespace {

struct Plugin {
  std::string path;
  const char* entry;
  const char* missing;  // what to do if the library is missing
  const char* install;  // if it does not load
};

template <typename Backend>
Backend Open(const Plugin& plugin) {
  if (access(plugin.path.c_str(), R_OK) != 0) return {.status = Status::Invalid(plugin.missing)};
  void* library = dlopen(plugin.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return {.status = Status::Invalid(fmt::format("{} ({})", dlerror(), plugin.install))};
  auto* open = reinterpret_cast<void (*)(Backend*)>(dlsym(library, plugin.entry));
  if (open == nullptr)
    return {.status = Status::Invalid(
                fmt::format("{} is not this program's library (the one next to it)", plugin.path))};
  Backend backend;
  open(&backend);
  return backend;
}

}  // namespace

CudaBackend OpenCuda(const std::string& directory) {
  auto backend =
      Open<CudaBackend>({.path = directory + "/" + kCudaPlugin,
                         .entry = kCudaEntry,
                         .missing = "not in this build (cpu, or build with --config=cuda)",
                         .install = "install CUDA 13, or cpu"});
  if (!backend.status.ok()) backend.status = backend.status.In("--backend cuda");
  return backend;
}

NcclBackend OpenNccl(const std::string& directory) {
  auto backend = Open<NcclBackend>(
      {.path = directory + "/" + kNcclPlugin,
       .entry = kNcclEntry,
       .missing = "not in this build (shm or mpi, or build with --config=cuda where NCCL is)",
       .install = "install NCCL, or shm or mpi"});
  if (!backend.status.ok()) backend.status = backend.status.In("--transport nccl");
  return backend;
}

}  // namespace pp
