// Preloaded into a program: a machine without another thread, once there is the file $THREADS_FULL;
// a disk that is slow, or full, for the files whose path contains
//
//   $FSYNC_SLOW    an fsync takes $FSYNC_SECONDS
//   $WRITE_FULL    nothing can be written
//   $CLOSE_FULL    the disk says so only when the file is closed, as network file systems do
//
// and, with $NO_FLOCK, a disk without locks. The $FAULT_AT-th call (from 1) that is about a path
// containing $FAULT_PATH fails with errno $FAULT_ERRNO, once, or, with $FAULT_ALWAYS, as all later
// ones; the file $FAULT_FIRED is made then.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

namespace {

std::string PathOf(int descriptor) {
  char path[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  return readlink(link.c_str(), path, sizeof path - 1) > 0 ? path : "";
}

bool Named(int descriptor, const char* variable) {
  const char* part = std::getenv(variable);
  return part != nullptr && PathOf(descriptor).find(part) != std::string::npos;
}

template <typename F>
F* Real(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

// 0, or the errno that this call shall fail with.
int FaultOf(const std::string& path) {
  static const char* const part = std::getenv("FAULT_PATH");
  static std::atomic<int> calls{0};
  if (part == nullptr || path.find(part) == std::string::npos) return 0;
  const int at = std::atoi(std::getenv("FAULT_AT")), call = ++calls;
  if (call < at || (call > at && std::getenv("FAULT_ALWAYS") == nullptr)) return 0;
  static auto* const open_file = Real<int(const char*, int, ...)>("open");
  static auto* const close_file = Real<int(int)>("close");
  const int fired = open_file(std::getenv("FAULT_FIRED"), O_WRONLY | O_CREAT, 0666);
  if (fired >= 0) close_file(fired);
  return std::atoi(std::getenv("FAULT_ERRNO"));
}

bool Fails(const std::string& path) {
  const int fault = FaultOf(path);
  if (fault != 0) errno = fault;
  return fault != 0;
}
bool Fails(int descriptor) {
  static const bool any = std::getenv("FAULT_PATH") != nullptr;
  return any && Fails(PathOf(descriptor));
}

}  // namespace

extern "C" int fsync(int descriptor) {
  static auto* const real = Real<int(int)>("fsync");
  if (Named(descriptor, "FSYNC_SLOW")) {
    timespec left{.tv_sec = std::atoi(std::getenv("FSYNC_SECONDS")), .tv_nsec = 0};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
  }
  return Fails(descriptor) ? -1 : real(descriptor);
}

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  static auto* const real =
      Real<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  const char* full = std::getenv("THREADS_FULL");
  if (full != nullptr && access(full, F_OK) == 0) return EAGAIN;
  return real(thread, attributes, start, argument);
}

extern "C" int flock(int descriptor, int operation) {
  static auto* const real = Real<int(int, int)>("flock");
  if (std::getenv("NO_FLOCK") == nullptr) return real(descriptor, operation);
  errno = ENOLCK;
  return -1;
}

extern "C" ssize_t write(int descriptor, const void* data, size_t bytes) {
  static auto* const real = Real<ssize_t(int, const void*, size_t)>("write");
  if (Fails(descriptor)) return -1;
  if (!Named(descriptor, "WRITE_FULL")) return real(descriptor, data, bytes);
  errno = ENOSPC;
  return -1;
}

extern "C" ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  static auto* const real = Real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return Fails(descriptor) ? -1 : real(descriptor, data, bytes, offset);
}

extern "C" int posix_fallocate(int descriptor, off_t offset, off_t bytes) {
  static auto* const real = Real<int(int, off_t, off_t)>("posix_fallocate");
  const int fault = FaultOf(PathOf(descriptor));
  return fault != 0 ? fault : real(descriptor, offset, bytes);
}

extern "C" int open(const char* path, int flags, ...) {
  static auto* const real = Real<int(const char*, int, ...)>("open");
  va_list more;
  va_start(more, flags);
  const auto mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return Fails(path) ? -1 : real(path, flags, mode);
}

extern "C" int mkdir(const char* path, mode_t mode) {
  static auto* const real = Real<int(const char*, mode_t)>("mkdir");
  return Fails(path) ? -1 : real(path, mode);
}

extern "C" int rename(const char* from, const char* to) noexcept {
  static auto* const real = Real<int(const char*, const char*)>("rename");
  return Fails(from) ? -1 : real(from, to);
}

extern "C" int fstat(int descriptor, struct stat* stat) noexcept {
  static auto* const real = Real<int(int, struct stat*)>("fstat");
  return Fails(descriptor) ? -1 : real(descriptor, stat);
}

extern "C" int lstat(const char* path, struct stat* stat) noexcept {
  static auto* const real = Real<int(const char*, struct stat*)>("lstat");
  return Fails(path) ? -1 : real(path, stat);
}

extern "C" int close(int descriptor) {
  static auto* const real = Real<int(int)>("close");
  const bool full = Named(descriptor, "CLOSE_FULL");
  const int fault = std::getenv("FAULT_PATH") == nullptr ? 0 : FaultOf(PathOf(descriptor));
  const int result = real(descriptor);
  if (fault != 0) {
    errno = fault;
    return -1;
  }
  if (!full) return result;
  errno = ENOSPC;
  return -1;
}
