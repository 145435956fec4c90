#include "runtime/files/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/files/folder.h"
#include "schema/base/disk.h"

namespace pp {
namespace {

Status CannotWrite(const std::string& path, int error) {
  return Status::Invalid(fmt::format("{}: cannot be written: {}", path, std::strerror(error)));
}

bool IsRegular(int descriptor) {
  struct stat stat;
  return fstat(descriptor, &stat) == 0 && S_ISREG(stat.st_mode);
}

}  // namespace

Result<OutputFile> OutputFile::Open(const std::string& path) {
  if (path == kStandardOutput) {
    const int copy = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    return copy < 0 ? Result<OutputFile>(CannotWrite(path, errno)) : OutputFile(path, copy, false);
  }
  // A named pipe without a reader is an error instead of a wait.
  constexpr int kFlags = O_WRONLY | O_CLOEXEC | O_NONBLOCK;
  int descriptor = open(path.c_str(), kFlags);
  bool is_new = false;
  if (descriptor < 0 && errno == ENOENT) {
    PP_RETURN_IF_ERROR(MakeParent(path));
    descriptor = open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0666);
    is_new = descriptor >= 0;
    // A link to a file that does not exist yet.
    if (descriptor < 0 && errno == EEXIST) descriptor = open(path.c_str(), kFlags | O_CREAT, 0666);
  }
  if (descriptor < 0) return CannotWrite(path, errno);
  OutputFile file(path, descriptor, is_new);
  fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
  if (IsRegular(descriptor) && !Lock(descriptor))
    return Status::Invalid(fmt::format("{}: another run is writing it (another file)", path));
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      is_new_(std::exchange(other.is_new_, false)) {}

OutputFile::~OutputFile() {
  if (is_new_) unlink(path_.c_str());
  if (descriptor_ >= 0) close(descriptor_);
}

bool OutputFile::IsOurs() const { return path_ != kStandardOutput && IsRegular(descriptor_); }

bool OutputFile::Is(const std::string& path) const {
  struct stat mine, other;
  return fstat(descriptor_, &mine) == 0 && S_ISREG(mine.st_mode) &&
         stat(path.c_str(), &other) == 0 && mine.st_dev == other.st_dev &&
         mine.st_ino == other.st_ino;
}

Status OutputFile::Begin(int64_t keep) {
  is_new_ = false;
  if (!IsOurs()) return {};
  if (ftruncate(descriptor_, keep) != 0 || lseek(descriptor_, keep, SEEK_SET) < 0)
    return CannotWrite(path_, errno);
  return {};
}

Status OutputFile::Write(std::string_view text) {
  const int error = WriteAll(descriptor_, text);
  if (error == 0) return {};
  return Status::Failed(fmt::format("{}: cannot be written: {}", path_, std::strerror(error)));
}

Status OutputFile::Close() {
  if (close(std::exchange(descriptor_, -1)) == 0) return {};
  return Status::Failed(fmt::format("{}: cannot be written: {}", path_, std::strerror(errno)));
}

}  // namespace pp
