// A Hugging Face folder that a run writes: config.json and fp32 weights, in one file or in several
// with an index. It is complete or absent: all is written into a folder next to it, which gets its
// name at the end.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/files/file_watch.h"
#include "schema/base/status.h"

namespace pp {

struct ModelFolderEntry {
  std::string name;
  std::vector<int64_t> shape;
};

class ModelFolder {
 public:
  // Hugging Face's own limit for a file.
  static constexpr int64_t kFileBytes = int64_t{5'000'000'000};

  // Makes the adjacent folder, `path`.unfinished, or empties the one that a killed run has left.
  // Invalid: `path` exists and is not an empty folder, cannot be made, or another run is writing
  // it.
  static Result<ModelFolder> Open(const std::string& path);
  // Whether a run is writing there, as far as this host sees.
  static bool IsBegun(const std::string& path);
  ModelFolder(ModelFolder&& other) noexcept;
  ModelFolder& operator=(ModelFolder&&) = delete;
  // Removes what was not finished.
  ~ModelFolder();

  // What will be written. A file has at most `file_bytes` of data, or one tensor.
  Status Begin(const std::string& config_json, std::span<const ModelFolderEntry> entries,
               int64_t file_bytes = kFileBytes);
  // `count` elements of an entry, from element `first` on.
  Status Write(size_t entry, int64_t first, const float* numbers, int64_t count);
  // All elements are written: gives the folder its name. Failed: the disk is full or broken; or
  // there is something of this name by now: then the model has another name, which is said.
  // `watch` may be null.
  Status Finish(FileWatch* watch = nullptr);

 private:
  struct File {
    std::string name;
    int descriptor = -1;
  };
  struct Place {
    size_t file = 0;
    int64_t offset = 0;
  };

  ModelFolder(std::string path, std::string beside, int folder)
      : path_(std::move(path)), beside_(std::move(beside)), folder_(folder) {}
  Status Empty() const;
  Status BeginFile(size_t file, std::span<const ModelFolderEntry> entries);
  Status WriteText(const std::string& name, const std::string& text);
  Status Sync(int descriptor, const std::string& name, FileWatch* watch = nullptr);
  Status Name();

  std::string path_, beside_;  // beside_: the temporary folder's path, empty when it is gone
  int folder_;                 // the temporary one, which is locked
  std::vector<File> files_;
  std::vector<Place> places_;  // by entry
};

}  // namespace pp
