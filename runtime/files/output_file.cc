#include "runtime/files/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/comm/clock.h"
#include "runtime/files/folder.h"
#include "runtime/files/line_writer.h"
#include "schema/base/disk.h"

namespace pp {
namespace {

Status NotWritable(const std::string& path, int error) {
  return Status::Invalid(fmt::format("{}: cannot be written: {}", path, std::strerror(error)));
}

}  // namespace

Result<OutputFile> OutputFile::Open(const std::string& path) {
  if (path == kStandardOutput) {
    const int copy = OpenAgain(STDOUT_FILENO);
    if (copy < 0) return NotWritable(path, errno);
    OutputFile file(path, copy, false);
    PP_RETURN_IF_ERROR(file.Look());
    return file;
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
  if (descriptor < 0) return NotWritable(path, errno);
  OutputFile file(path, descriptor, is_new);
  PP_RETURN_IF_ERROR(file.Look());
  if (file.is_regular_ && !Lock(descriptor))
    return Status::Invalid(fmt::format("{}: another run is writing it (another file)", path));
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      is_new_(std::exchange(other.is_new_, false)),
      is_regular_(other.is_regular_) {}

OutputFile::~OutputFile() {
  if (is_new_) unlink(path_.c_str());
  if (descriptor_ >= 0) close(descriptor_);
}

Status OutputFile::Look() {
  struct stat stat;
  if (fstat(descriptor_, &stat) != 0) return NotWritable(path_, errno);
  is_regular_ = S_ISREG(stat.st_mode);
  return {};
}

bool OutputFile::Is(const std::string& path) const {
  struct stat mine, other;
  return fstat(descriptor_, &mine) == 0 && S_ISREG(mine.st_mode) &&
         stat(path.c_str(), &other) == 0 && mine.st_dev == other.st_dev &&
         mine.st_ino == other.st_ino;
}

Status OutputFile::Begin(int64_t keep) {
  is_new_ = false;
  if (!is_regular_ || path_ == kStandardOutput) return {};  // not ours to be cut off
  if (ftruncate(descriptor_, keep) != 0 || lseek(descriptor_, keep, SEEK_SET) < 0)
    return NotWritable(path_, errno);
  return {};
}

Status OutputFile::Write(std::string_view text, const std::function<bool(double)>& waits) {
  AwakeClock clock;
  double silent = 0;
  size_t left = text.size();
  const auto goes_on = [&] {
    const double lap = clock.Lap();
    silent = text.size() == left ? silent + lap : 0;
    left = text.size();
    return !waits || waits(silent);
  };
  const int error =
      is_regular_ ? WriteAll(descriptor_, text) : WriteWhile(descriptor_, &text, goes_on);
  if (error == 0) return {};
  if (error == EAGAIN) return Status::Failed(fmt::format("{}: nobody reads it", path_));
  return Status::Failed(fmt::format("{}: cannot be written: {}", path_, std::strerror(error)));
}

Status OutputFile::Close() {
  if (close(std::exchange(descriptor_, -1)) == 0) return {};
  return Status::Failed(fmt::format("{}: cannot be written: {}", path_, std::strerror(errno)));
}

}  // namespace pp
