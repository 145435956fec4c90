// Finds and loads the MPI transport.
#include "runtime/comm/mpi_plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace pp {

Joined JoinMpi(const std::string& directory, const JoinMpiArgs& args) {
  const std::string path = directory + "/" + kMpiPlugin;
  // MPI looks up its own symbols in globally loaded libraries. It stays loaded.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr)
    return {.status = Status::Invalid(
                fmt::format("--transport mpi: {} (build it on a machine with MPI, or use "
                            "--transport threads)",
                            dlerror()))};
  auto* join = reinterpret_cast<JoinMpiEntry*>(dlsym(library, kMpiEntry));
  if (join == nullptr)
    return {.status = Status::Invalid(
                fmt::format("--transport mpi: {} is not this program's MPI library", path))};
  Joined joined;
  join(args, &joined);
  return joined;
}

}  // namespace pp
