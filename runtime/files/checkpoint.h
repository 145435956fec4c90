// A saved training as files. A folder has the latest checkpoints, each complete:
//
//   step-00000020/ rank-0 rank-1 ...   one shard per rank: elements, and a footer that names them
//                  manifest.json       for the whole: model, step, the footers' checksums
//   .saving-00000030/                  is being written, and gets its name when all is done
//
// A shard: elements (fp32) of all records | footer, JSON | its length, u64 | its XXH3, u64. Every
// record has its own checksum; the manifest ends with one of everything before it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "schema/disk.h"
#include "schema/model/layout.h"
#include "schema/status.h"

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
  // Invalid: cannot be written.
  static Result<ShardWriter> Create(const std::string& path);
  ShardWriter(ShardWriter&& other) noexcept;
  ShardWriter& operator=(ShardWriter&&) = delete;
  ~ShardWriter();

  // Failed, here and below: the disk is full or broken.
  Status Add(StateRecord record, const float* numbers);
  // Writes the footer, and makes sure that everything has reached the disk.
  Status Finish();

 private:
  ShardWriter(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  Status Write(const void* data, int64_t bytes);

  std::string path_;
  int descriptor_;
  int64_t offset_ = 0;
  std::vector<StateRecord> records_;
};

class ShardReader {
 public:
  // Invalid: it is damaged, or truncated.
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
  std::string model;       // config.json
  int64_t step = 0;        // steps done
  int64_t updates = 0;     // of every weight, in those steps
  bool by_epochs = false;  // how the training counts, and so where it is in the data
  int64_t sequences = 0;   // consumed by them
  uint64_t seed = 0;
  // If the loss was scaled (kernels/loss_scale.h); else 0.
  double loss_scale = 0;   // of the next step
  int64_t good_steps = 0;  // since it changed
  int64_t skipped = 0;     // updates
  struct Shard {
    int64_t bytes = 0;
    uint64_t footer_sum = 0;
  };
  std::vector<Shard> shards;  // by rank
};

Status WriteManifest(const std::string& folder, const Manifest& manifest);
// Invalid: it is missing, damaged, or of an unknown format.
Result<Manifest> ReadManifest(const std::string& folder);

std::string StepFolder(const std::string& dir, int64_t step);
std::string SavingFolder(const std::string& dir, int64_t step);
std::string ShardPath(const std::string& folder, int rank);
// Steps that have a folder, the latest first.
std::vector<int64_t> SavedSteps(const std::string& dir);

// The one run that writes into the folder. Removes what an earlier one has left unfinished, and
// finally what it has not finished itself.
class SaveFolder {
 public:
  // Invalid: it cannot be created, or another run writes into it.
  static Result<SaveFolder> Open(const std::string& dir);
  SaveFolder(SaveFolder&& other) noexcept;
  SaveFolder& operator=(SaveFolder&&) = delete;
  ~SaveFolder();

  // The checkpoint of this step is whole; later ones are not.
  void GoOnFrom(int64_t step) { whole_ = {step}; }
  // All shards have been written: writes the manifest, after inspecting the shards, gives the
  // folder its name, and removes all but the last two whole checkpoints.
  Status Finish(Manifest manifest, int ranks);

 private:
  void RemoveUnfinished();
  SaveFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string path_;
  int lock_;
  std::vector<int64_t> whole_;  // steps, the latest at the end
};

}  // namespace pp
