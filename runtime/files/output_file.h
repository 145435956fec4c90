// A file that a run writes: opened before training begins, so that a path that cannot be written is
// found early, and emptied only when the run is sure to begin.
#pragma once

#include <string>
#include <string_view>

#include "schema/base/status.h"

namespace pp {

class OutputFile {
 public:
  // Opens the file, keeping its contents, or creates it and its folder; standard output stays as it
  // is, with what is in it. It belongs to this run
  // alone until it is closed. Invalid: it cannot be written, or another run writes it.
  static Result<OutputFile> Open(const std::string& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  // Removes a new file that was never begun.
  ~OutputFile();

  // Whether `path`, or a link, leads to the same file. A device belongs to nobody.
  bool Is(const std::string& path) const;

  // From now on it is this run's, which continues after so many bytes: the rest is cut off.
  Status Begin(int64_t keep = 0);
  // Appends all of `text` in one call: what is written survives a crash. Failed: the disk is full.
  Status Write(std::string_view text);
  // Some file systems say only here that the disk is full.
  Status Close();

  const std::string& path() const { return path_; }

 private:
  OutputFile(std::string path, int descriptor, bool is_new)
      : path_(std::move(path)), descriptor_(descriptor), is_new_(is_new) {}

  std::string path_;
  int descriptor_;
  bool is_new_;  // and not begun
  // Whether it may be cut off: a regular file, but not as standard output.
  bool IsOurs() const;
};

}  // namespace pp
