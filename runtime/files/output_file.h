// A file that a run writes: opened before training begins, so that a path that cannot be
// written is known in time.
#pragma once

#include <string>
#include <string_view>

#include "schema/status.h"

namespace pp {

class OutputFile {
 public:
  // Creates or empties the file. Invalid: it cannot be written.
  static Result<OutputFile> Open(const std::string& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  // Appends all of `text` at once: what is written survives a crash. Failed: the disk is full.
  Status Write(std::string_view text);

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }

 private:
  OutputFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_;
};

}  // namespace pp
