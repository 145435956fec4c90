// A file that a run writes: opened before training begins, so that a path that cannot be written is
// found early, and emptied only when the run is sure to begin.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "schema/base/status.h"

namespace pp {

class OutputFile {
 public:
  // Opens the file, keeping its contents, or creates it and its folder; standard output stays as it
  // is, with what is in it. It belongs to this run alone until it is closed. Invalid: it cannot be
  // written, or another run writes it.
  static Result<OutputFile> Open(const std::string& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  // Removes a new file that was never begun.
  ~OutputFile();

  // Whether `path`, or a link, leads to the same file. A device belongs to nobody.
  bool Is(const std::string& path) const;

  // From now on it is this run's, which continues after so many bytes: the rest is cut off.
  Status Begin(int64_t keep = 0);
  // Appends all of `text`: what is written survives a crash. Where it is no file of a disk it waits
  // for a reader as long as `waits` says (none: forever), which is told several times a second how
  // many seconds nothing has been read. Failed: the disk is full, or nobody reads.
  Status Write(std::string_view text, const std::function<bool(double silent)>& waits = {});
  // Some file systems say only here that the disk is full.
  Status Close();

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  // Not a pipe, a terminal or a device.
  bool is_regular() const { return is_regular_; }

 private:
  OutputFile(std::string path, int descriptor, bool is_new)
      : path_(std::move(path)), descriptor_(descriptor), is_new_(is_new) {}

  Status Look();

  std::string path_;
  int descriptor_;
  bool is_new_;  // and not begun
  bool is_regular_ = false;
};

}  // namespace pp
