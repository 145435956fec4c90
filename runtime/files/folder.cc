#include "runtime/files/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
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

bool IsMountPoint(const std::string& path) {
  struct statx status;
  return statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &status) == 0 &&
         (status.stx_attributes & status.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0;
}

int Sync(int descriptor) {
  int error = 0;
  do {
    error = fsync(descriptor) == 0 ? 0 : errno;
  } while (error == EINTR);
  return error;
}

int Rename(const std::string& from, const std::string& to, std::string* named) {
  constexpr int kTaken[] = {EEXIST, ENOTEMPTY, ENOTDIR, EISDIR, EBUSY};
  constexpr int kMost = 10000;
  *named = to;
  for (int number = 2; rename(from.c_str(), named->c_str()) != 0; ++number) {
    const int error = errno;
    if (number > kMost || std::count(std::begin(kTaken), std::end(kTaken), error) == 0)
      return error;
    *named = fmt::format("{}-{}", to, number);
  }
  return 0;
}

Result<InputFile> OpenPart(const std::string& path, const std::string& right) {
  Result<InputFile> file = InputFile::Open(path, right);
  struct stat stat;
  if (file.ok() || (lstat(path.c_str(), &stat) != 0 && errno == ENOENT)) return file;
  return Status::Failed(file.status().message());
}

Status SyncFolder(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int error = folder < 0 ? errno : Sync(folder);
  if (folder >= 0) close(folder);
  if (error == 0) return {};
  return Status::Failed(fmt::format("{}: cannot be written: {}", path, std::strerror(error)));
}

Status SyncParent(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path();
  return SyncFolder(parent.empty() ? "." : parent);
}

}  // namespace pp
