#include "schema/base/disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

namespace pp {
namespace {

constexpr int64_t kMostAtOnce = int64_t{1} << 30;  // a system call takes at most 2 GiB

std::string Text(int error) { return std::generic_category().message(error); }

// Closes itself on every way out of a function.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  // The error of close, which is where some file systems report a full disk; 0 if none.
  int Close() { return close(std::exchange(fd_, -1)) == 0 ? 0 : errno; }

 private:
  int fd_;
};

Status WriteError(const std::string& path, int error, size_t bytes) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EIO:
      return Status::Failed(
          fmt::format("{}: {} ({} bytes are to be written)", Shown(path), Text(error), bytes));
    default:
      return Status::Invalid(fmt::format(
          "{}: cannot be written: {} (a file name in a folder that exists and may be written to)",
          Shown(path), Text(error)));
  }
}

// 0, or what errno says.
int WriteParts(int descriptor, std::span<const std::string_view> parts) {
  for (const std::string_view part : parts)
    if (const int error = WriteAll(descriptor, part)) return error;
  return 0;
}

// A file of less than 1024 bytes that stands for one which "git lfs pull" fetches.
bool IsGitLfsPointer(const InputFile& file) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  char begin[kBegin.size()];
  return file.bytes() > std::ssize(kBegin) && file.bytes() < 1024 &&
         file.Read(0, begin, sizeof begin).ok() && std::string_view(begin, sizeof begin) == kBegin;
}

int WriteNewFile(const std::string& path, std::span<const std::string_view> parts) {
  Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (file.get() < 0) return errno;
  if (const int error = WriteParts(file.get(), parts)) return error;
  if (fsync(file.get()) != 0) return errno;
  return file.Close();
}

int WriteDevice(const std::string& path, std::span<const std::string_view> parts) {
  Descriptor device(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (device.get() < 0) return errno;
  if (const int error = WriteParts(device.get(), parts)) return error;
  return device.Close();
}

}  // namespace

void KeepStandardDescriptors() {
  // open returns the lowest free descriptor; writing to one opened for reading fails.
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(descriptor, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != descriptor) return;
}

void AllowManyFiles() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int WriteAll(int descriptor, std::string_view bytes, std::optional<int64_t> offset) {
  while (!bytes.empty()) {
    const size_t size = std::min<size_t>(bytes.size(), kMostAtOnce);
    const ssize_t written = offset ? pwrite(descriptor, bytes.data(), size, *offset)
                                   : write(descriptor, bytes.data(), size);
    if (written < 0 && errno != EINTR) return errno;
    if (written <= 0) continue;
    bytes.remove_prefix(static_cast<size_t>(written));
    if (offset) *offset += written;
  }
  return 0;
}

Status CannotRead(const std::string& path, int error, const std::string& right) {
  return Status::Invalid(
      fmt::format("{}: cannot be read: {} ({})", Shown(path), Text(error), right));
}

Status TooLong(const std::string& path, int64_t bytes, int64_t most_bytes,
               const std::string& right) {
  return Status::Invalid(
      fmt::format("{}: {} bytes ({} of at most {})", Shown(path), bytes, right, most_bytes));
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_) {}

InputFile::~InputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

Result<InputFile> InputFile::Open(const std::string& path, const std::string& right) {
  // Without O_NONBLOCK, opening a FIFO waits for a writer.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return CannotRead(path, errno, right);
  InputFile file(path, descriptor, 0);
  struct stat stat;
  if (fstat(descriptor, &stat) != 0) return CannotRead(path, errno, right);
  if (!S_ISREG(stat.st_mode)) {
    const char* what = S_ISDIR(stat.st_mode) ? "a directory" : "not a regular file";
    return Status::Invalid(fmt::format("{}: is {} ({})", Shown(path), what, right));
  }
  file.bytes_ = stat.st_size;
  if (IsGitLfsPointer(file))
    return Status::Invalid(
        fmt::format("{}: is a Git LFS pointer, not the file itself (git lfs pull)", Shown(path)));
  return file;
}

Status InputFile::Read(int64_t offset, void* out, int64_t bytes) const {
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_, to, std::min<int64_t>(bytes, kMostAtOnce), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return Status::Failed(fmt::format("{}: cannot be read: {}", Shown(path_), Text(errno)));
    if (got == 0)
      return Status::Failed(fmt::format("{}: cut short while it is read: byte {} of {} is missing",
                                        path_, offset, bytes_));
    to += got;
    offset += got;
    bytes -= got;
  }
  return {};
}

Result<std::string> ReadWhole(const std::string& path, const std::string& right,
                              int64_t most_bytes) {
  const Result<InputFile> file = InputFile::Open(path, right);
  PP_RETURN_IF_ERROR(file.status());
  if (file->bytes() > most_bytes) return TooLong(path, file->bytes(), most_bytes, right);
  std::string bytes(file->bytes(), '\0');
  PP_RETURN_IF_ERROR(file->Read(0, bytes.data(), file->bytes()));
  return bytes;
}

Status WriteWhole(const std::string& path, std::span<const std::string_view> parts) {
  size_t bytes = 0;
  for (std::string_view part : parts) bytes += part.size();
  if (path == kStandardOutput) {
    const int error = WriteParts(STDOUT_FILENO, parts);
    return error == 0 ? Status() : WriteError(path, error, bytes);
  }
  struct stat stat;
  const bool exists = ::stat(path.c_str(), &stat) == 0;
  if (exists && S_ISDIR(stat.st_mode)) {
    return Status::Invalid(fmt::format("{}: is a directory (the name of a file)", Shown(path)));
  }
  if (exists && !S_ISREG(stat.st_mode)) {
    const int error = WriteDevice(path, parts);
    return error == 0 ? Status() : WriteError(path, error, bytes);
  }
  // A read-only file is left alone, although its folder would allow replacing it.
  if (exists && access(path.c_str(), W_OK) != 0) return WriteError(path, errno, bytes);
  // A link continues to point to its file.
  std::error_code unresolved;
  std::string target = exists ? std::filesystem::canonical(path, unresolved).string() : path;
  if (unresolved) target = path;

  const std::string beside = fmt::format("{}.tmp-{}", target, getpid());
  int error = WriteNewFile(beside, parts);
  if (error == 0 && rename(beside.c_str(), target.c_str()) != 0) error = errno;
  if (error == 0) return {};
  unlink(beside.c_str());
  return WriteError(path, error, bytes);
}

}  // namespace pp
