#include "runtime/files/checked_part.h"

#include <sys/stat.h>
#include <xxhash.h>

#include <cerrno>

namespace pp {

uint64_t SumOf(const void* data, int64_t bytes) { return XXH3_64bits(data, bytes); }

Result<InputFile> OpenPart(const std::string& path, const std::string& right) {
  Result<InputFile> file = InputFile::Open(path, right);
  struct stat stat;
  if (file.ok() || (lstat(path.c_str(), &stat) != 0 && errno == ENOENT)) return file;
  return Status::Failed(file.status().message());
}

}  // namespace pp
