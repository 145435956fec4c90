// A file in memory under its own name, refilled for every input: what reads files is fuzzed through
// its front door, and fast.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "schema/base/status.h"

namespace pp {

class MemoryFile {
 public:
  // `folder` must exist.
  MemoryFile(const std::string& folder, const std::string& name)
      : path_(folder + "/" + name), descriptor_(memfd_create(name.c_str(), 0)) {
    PP_CHECK(descriptor_ >= 0);
    std::filesystem::create_symlink("/proc/self/fd/" + std::to_string(descriptor_), path_);
  }

  void Fill(std::string_view bytes) const {
    PP_CHECK(ftruncate(descriptor_, 0) == 0);
    PP_CHECK(pwrite(descriptor_, bytes.data(), bytes.size(), 0) ==
             static_cast<ssize_t>(bytes.size()));
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  const int descriptor_;
};

// A new folder, for the names.
inline std::string NewFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "fuzz.XXXXXX").string();
  PP_CHECK(mkdtemp(name.data()) != nullptr);
  return name;
}

}  // namespace pp
