// A Hugging Face folder that a run writes: weights, in one file or in several with an index, and
// the small files that go with them (source_files.h); or an adapter (adapter_config.h). It is
// complete or absent: all is written into a folder next to it, `path`.unfinished, which gets its
// name at the end.
//
// From the first trained number on nothing of it is removed: if it cannot be finished, it stays
// there, and the error says how far it is. A later run of the same name gives it another one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/files/file_watch.h"
#include "runtime/files/source_files.h"
#include "schema/base/status.h"
#include "schema/model/dtype.h"

namespace pp {

struct ModelFolderEntry {
  std::string name;
  std::vector<int64_t> shape;
};

class ModelFolder {
 public:
  // Hugging Face's own limit for a file.
  static constexpr int64_t kFileBytes = int64_t{5'000'000'000};

  // Makes the adjacent folder, or empties the one that a killed run has left, unless that has
  // trained numbers. Invalid: `path` exists and is not an empty folder, or could not be given to
  // another folder (a mount point, "."); it cannot be made; another run is writing it.
  static Result<ModelFolder> Open(const std::string& path);
  // Whether a run is writing there, as far as this host sees.
  static bool IsBegun(const std::string& path);
  ModelFolder(ModelFolder&& other) noexcept;
  ModelFolder& operator=(ModelFolder&&) = delete;
  // Removes it, if it has no trained numbers.
  ~ModelFolder();

  // What became of an earlier run's folder, for the user; empty: nothing.
  const std::string& note() const { return note_; }

  struct Contents {
    SourceFiles files;                // beside the weights, as they are
    Dtype dtype = Dtype::kFp32;       // of the weights: kFp32 or kBf16
    int64_t file_bytes = kFileBytes;  // of weights in a file, at most, or one tensor
    std::string stem = "model";       // of their files' names
  };
  // What will be written: opens all files, and takes the room on the disk. Failed: no room, or a
  // file system that cannot sync a folder.
  Status Begin(Contents contents, std::span<const ModelFolderEntry> entries);

  // The training is over: from now on it has trained numbers. If somebody has removed the folder,
  // or something of it, it is made anew. After an error in what follows, all can be written once
  // more, from here on.
  Status Start();
  // `count` elements of an entry, from element `first` on, rounded to the nearest, ties to even.
  // After an error others can be written. Failed, too: a number that bf16 does not have.
  Status Write(size_t entry, int64_t first, const float* numbers, int64_t count);
  // All elements are written: gives the folder its name. Failed: the disk is full or broken; or
  // there is something of this name by now: then the model has another name, which is said.
  // `watch` may be null.
  Status Finish(FileWatch* watch = nullptr);
  // An error of what could not be finished, with what is there of it, and how to finish it.
  Status WithRemains(const Status& error) const;

 private:
  struct File {
    std::string name, begin;  // what is before the data: a safetensors header, or all of a text
    int64_t bytes = 0;        // in all
    int descriptor = -1;
    int64_t left = 0;  // bytes that are not written yet, or could not be
  };
  struct Place {
    size_t file = 0;
    int64_t offset = 0;
  };
  enum class State { kEmpty, kTrained, kComplete, kNamed };

  explicit ModelFolder(std::string path) : path_(std::move(path)), beside_(path_ + ".unfinished") {}
  Status MakeFolder();
  Status MakeAnew();
  Status LockFolder();
  Status TakeOver();
  bool FolderIsThere() const;
  bool IsGone() const;
  Status MakeFiles();
  Status MakeFile(File* file);
  void Remove();
  void Close();
  int64_t Bytes(const ModelFolderEntry& entry) const;
  std::string Header(std::span<const ModelFolderEntry> entries) const;
  Status WriteHalves(const Place& place, int64_t first, std::span<const float> numbers);
  File& AddFile(std::span<const ModelFolderEntry> entries);
  Status WriteTo(File* file, std::string_view bytes, int64_t offset);
  Status SyncFiles(FileWatch* watch);

  std::string path_, beside_;
  std::string named_;  // what it is called, once it is named
  std::string note_;
  int folder_ = -1;  // the one beside, which is locked
  int parent_ = -1;
  State state_ = State::kEmpty;
  Dtype dtype_ = Dtype::kFp32;
  std::vector<File> files_;    // those with tensors first
  std::vector<Place> places_;  // by entry
};

}  // namespace pp
