#include "runtime/files/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace pp {

bool Lock(int descriptor) {
  return flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

Status MakeFolder(const std::string& path) {
  std::error_code error;
  const bool is_new = std::filesystem::create_directories(path, error);
  if (error) return Status::Invalid(fmt::format("{}: cannot be made: {}", path, error.message()));
  return is_new ? SyncParent(path) : Status();
}

Status MakeParent(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? Status() : MakeFolder(parent);
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
