// Preloaded into a program: close() of a file whose name ends with $CLOSE_FAILS reports that the
// disk is full, as network file systems do.
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

extern "C" int close(int descriptor) {
  static auto* const real = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "close"));
  char name[4096] = {};
  const char* fails = std::getenv("CLOSE_FAILS");
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const bool known = readlink(link.c_str(), name, sizeof name - 1) > 0;
  const int result = real(descriptor);
  if (fails == nullptr || !known || !std::string(name).ends_with(fails)) return result;
  errno = ENOSPC;
  return -1;
}
