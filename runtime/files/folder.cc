#include "runtime/files/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace pp {

bool Lock(int descriptor) {
  return flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

Status SyncFolder(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = folder >= 0 && fsync(folder) == 0;
  const int error = errno;
  if (folder >= 0) close(folder);
  if (synced) return {};
  return Status::Failed(fmt::format("{}: cannot be written: {}", path, std::strerror(error)));
}

Status SyncParent(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path();
  return SyncFolder(parent.empty() ? "." : parent);
}

}  // namespace pp
