// Files: reading a piece or all of one, and writing one completely or not at all.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "schema/base/status.h"

namespace pp {

// The process's own standard input and output by name: read and written where they stand, neither
// opened anew nor replaced, so that what is in a file before stays.
inline constexpr std::string_view kStandardInput = "/dev/stdin", kStandardOutput = "/dev/stdout";

// If a program was started without standard input, output or error, no file that it opens gets
// their descriptors; writing to them is an error. Call this before anything is opened.
void KeepStandardDescriptors();

// Raises the number of files that this process may open as far as the system lets it.
void AllowManyFiles();

// A regular file, open for reading. What is read is copied, so that a file truncated meanwhile
// causes an error and not a signal. Any number of threads can read.
class InputFile {
 public:
  // Invalid: there is no such file, it cannot be read, or it is a directory, a pipe or a device.
  // `right` ends the error: what kind of file it should be.
  static Result<InputFile> Open(const std::string& path, const std::string& right);

  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  // At the time of opening.
  int64_t bytes() const { return bytes_; }
  // Allocates no memory unless there is an error. Failed: the file has become shorter, or the disk
  // is broken.
  Status Read(int64_t offset, void* out, int64_t bytes) const;

 private:
  InputFile(std::string path, int descriptor, int64_t bytes)
      : path_(std::move(path)), descriptor_(descriptor), bytes_(bytes) {}
  std::string path_;
  int descriptor_;
  int64_t bytes_;
};

// The errors of reading a file: `right` says what it should be.
Status CannotRead(const std::string& path, int error, const std::string& right);
Status TooLong(const std::string& path, int64_t bytes, int64_t most_bytes,
               const std::string& right);

// All of a file; errors: those of InputFile, and Invalid if it has more than `most_bytes`.
Result<std::string> ReadWhole(const std::string& path, const std::string& right,
                              int64_t most_bytes);

// Writes all of `bytes` to an open file, at its position or at `offset`. Returns 0, or an errno.
int WriteAll(int descriptor, std::string_view bytes, std::optional<int64_t> offset = {});

// Writes `parts` one after the other. The bytes go to a file next to `path`, reach the disk, and
// only then get the name: whatever happens, `path` is what it was before or complete. Standard
// output and devices are written directly. Failed: the disk is full or broken. Invalid: a path that
// cannot be written.
Status WriteWhole(const std::string& path, std::span<const std::string_view> parts);

}  // namespace pp
