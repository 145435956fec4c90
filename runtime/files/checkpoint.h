// A saved training as files. A folder has the latest checkpoints, each complete:
//
//   step-00000020/ rank-0 rank-1 ...   one shard per rank: elements, and a footer that names them
//                  source-config.json  and others (source_files.h): what the model came with
//                  manifest.json       for the whole: model, step, the footers' checksums
//   .saving-00000030/                  is being written, and gets its name when all is done
//   .damaged-step-00000010/            could not be used by a run that continued from another one
//   .lock                              of the run that writes here; a number that only it knows
//
// A shard: elements (fp32) of all records | footer, JSON | its length, u64 | its XXH3, u64. Every
// record has its own checksum; the manifest ends with one of everything before it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/files/file_watch.h"
#include "runtime/files/source_files.h"
#include "schema/base/disk.h"
#include "schema/base/status.h"
#include "schema/model/layout.h"

namespace pp {

enum class StateKind : uint8_t { kWeights, kM, kV };

// Elements [begin, begin + count) of a tensor-parallel peer's part of a parameter (Tensor::id).
struct StateRecord {
  StateKind kind = StateKind::kWeights;
  int tensor = 0;
  Peer peer;
  int64_t begin = 0, count = 0;
  // The shard's.
  int64_t offset = 0;
  uint64_t sum = 0;
};

class ShardWriter {
 public:
  // Failed: cannot be written. `watch` may be null; it outlives the writer.
  static Result<ShardWriter> Create(const std::string& path, FileWatch* watch = nullptr);
  ShardWriter(ShardWriter&& other) noexcept;
  ShardWriter& operator=(ShardWriter&&) = delete;
  ~ShardWriter();

  // Failed, here and below: the disk is full or broken.
  Status Add(StateRecord record, const float* numbers);
  // Writes the footer, and makes sure that everything has reached the disk.
  Status Finish();

 private:
  ShardWriter(std::string path, int descriptor, FileWatch* watch)
      : path_(std::move(path)), descriptor_(descriptor), watch_(watch) {}
  Status Write(const void* data, int64_t bytes);

  std::string path_;
  int descriptor_;
  FileWatch* watch_;
  int64_t offset_ = 0;
  std::vector<StateRecord> records_;
};

class ShardReader {
 public:
  // Invalid: it is missing, damaged or truncated. Failed: it cannot be read.
  static Result<ShardReader> Open(const std::string& path);

  const std::vector<StateRecord>& records() const { return records_; }
  uint64_t footer_sum() const { return footer_sum_; }
  int64_t bytes() const { return file_.bytes(); }
  // All elements of a record. Invalid: its checksum does not match. Any number of threads can read.
  Status Read(const StateRecord& record, float* out) const;

 private:
  ShardReader(std::string path, InputFile file) : path_(std::move(path)), file_(std::move(file)) {}
  Status ReadFooter();

  std::string path_;
  InputFile file_;
  std::vector<StateRecord> records_;
  uint64_t footer_sum_ = 0;
};

struct Manifest {
  int format = 0;                // of the file; if it is not kManifestFormat, the rest is missing
  std::string model;             // config.json
  int64_t step = 0;              // steps done
  int64_t updates = 0;           // of every weight, in those steps
  bool by_epochs = false;        // how the training counts, and so where it is in the data
  int64_t sequences = 0;         // consumed by them,
  int64_t sequence_length = 0;   // of so many tokens; 0: an older file, which does not say
  std::optional<uint64_t> data;  // the data's digest (digest.h); none: an older file
  uint64_t seed = 0;
  std::map<std::string, std::string> options;  // that decide the numbers, as they were given
  // If the loss was scaled (kernels/loss_scale.h); else 0.
  double loss_scale = 0;   // of the next step
  int64_t good_steps = 0;  // since it changed
  int64_t skipped = 0;     // updates
  struct Shard {
    int64_t bytes = 0;
    uint64_t footer_sum = 0;
  };
  std::vector<Shard> shards;                      // by rank
  std::optional<std::vector<SourcePart>> source;  // none: it is not known, as of an older file
};
inline constexpr int kManifestFormat = 2;  // 1: peers' parts of a vocabulary had other rows

Status WriteManifest(const std::string& folder, const Manifest& manifest);
// Invalid: it is missing or damaged. Failed: it cannot be read.
Result<Manifest> ReadManifest(const std::string& folder);

std::string StepFolder(const std::string& dir, int64_t step);
std::string SavingFolder(const std::string& dir, int64_t step);
std::string ShardPath(const std::string& folder, int rank);
// Steps that have a folder with something of a checkpoint, the latest first.
std::vector<int64_t> SavedSteps(const std::string& dir);

// The one run that writes into the folder. Of what an earlier one has left, and finally of what it
// has left itself, a whole checkpoint gets its name, and parts of one are removed. What is not of a
// checkpoint stays where it is.
class SaveFolder {
 public:
  // Invalid: it cannot be created or synced, or another run writes into it.
  static Result<SaveFolder> Open(const std::string& dir);
  SaveFolder(SaveFolder&& other) noexcept;
  SaveFolder& operator=(SaveFolder&&) = delete;
  ~SaveFolder();

  // The number in the folder's .lock, by which other processes know that they see the same folder;
  // 0: there is none.
  static uint64_t NumberIn(const std::string& dir);

  // The run continues from the checkpoint of this step; later ones could not be used.
  void GoOnFrom(int64_t step) { whole_ = {step}; }
  // What all checkpoints have with the model; null: what it came with is not known.
  void Keep(std::shared_ptr<const SourceFiles> source) { source_ = std::move(source); }
  // Invalid: the disk has no room for so many checkpoints more, of so many bytes each, of which it
  // keeps the last two and writes a third.
  Status CheckRoom(int64_t checkpoints, int64_t bytes) const;
  // All shards have been written: writes the manifest, after inspecting the shards, gives the
  // folder its name, sets aside the checkpoints that could not be used, and removes all but the
  // last two whole ones. Failed: it is not saved. *notes: what stays there. `watch` may be null.
  Status Finish(Manifest manifest, int ranks, FileWatch* watch, std::vector<std::string>* notes);
  // The checkpoint of this step is given up, unless it is whole.
  void Drop(int64_t step);

 private:
  void FinishOrRemove();
  Status SetAside(int64_t step);
  void Remove(int64_t step, std::vector<std::string>* notes);
  SaveFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string path_;
  int lock_;
  std::shared_ptr<const SourceFiles> source_;
  std::vector<int64_t> whole_;  // steps, the latest at the end
};

}  // namespace pp
