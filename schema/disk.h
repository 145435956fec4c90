// Whole files: reading one without copying it, and writing one completely or not at all.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "schema/status.h"

namespace pp {

// A file's bytes, mapped into memory for reading; page-aligned.
class MappedFile {
 public:
  // Invalid: there is no such file, it cannot be read, or it is a directory or a device.
  // `right` ends the error: what kind of file it should be.
  static Result<MappedFile> Open(const std::string& path, const std::string& right);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::string_view bytes() const { return {data_, size_}; }

 private:
  MappedFile(const char* data, size_t size) : data_(data), size_(size) {}
  const char* data_;
  size_t size_;
};

// Writes `parts` one behind the other. The bytes go to a file beside `path`, reach the disk,
// and only then take the name: whatever happens, `path` is what it was before or complete. A
// device such as /dev/stdout is written directly. Failed: the disk is full or broken. Invalid:
// a path that cannot be written.
Status WriteWhole(const std::string& path, std::span<const std::string_view> parts);

}  // namespace pp
