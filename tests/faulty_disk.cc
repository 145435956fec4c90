// Preloaded into a program: a disk that is slow, or full, for the files whose path contains
//
//   $FSYNC_SLOW    an fsync takes $FSYNC_SECONDS
//   $WRITE_FULL    nothing can be written
//   $CLOSE_FULL    the disk says so only when the file is closed, as network file systems do
//
// and, with $NO_FLOCK, a disk without locks.
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <string>

namespace {

bool Named(int descriptor, const char* variable) {
  const char* part = std::getenv(variable);
  if (part == nullptr) return false;
  char path[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  return readlink(link.c_str(), path, sizeof path - 1) > 0 &&
         std::string(path).find(part) != std::string::npos;
}

template <typename F>
F* Real(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int fsync(int descriptor) {
  static auto* const real = Real<int(int)>("fsync");
  if (Named(descriptor, "FSYNC_SLOW")) {
    timespec left{.tv_sec = std::atoi(std::getenv("FSYNC_SECONDS")), .tv_nsec = 0};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
  }
  return real(descriptor);
}

extern "C" int flock(int descriptor, int operation) {
  static auto* const real = Real<int(int, int)>("flock");
  if (std::getenv("NO_FLOCK") == nullptr) return real(descriptor, operation);
  errno = ENOLCK;
  return -1;
}

extern "C" ssize_t write(int descriptor, const void* data, size_t bytes) {
  static auto* const real = Real<ssize_t(int, const void*, size_t)>("write");
  if (!Named(descriptor, "WRITE_FULL")) return real(descriptor, data, bytes);
  errno = ENOSPC;
  return -1;
}

extern "C" int close(int descriptor) {
  static auto* const real = Real<int(int)>("close");
  const bool full = Named(descriptor, "CLOSE_FULL");
  const int result = real(descriptor);
  if (!full) return result;
  errno = ENOSPC;
  return -1;
}
