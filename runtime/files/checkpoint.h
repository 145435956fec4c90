// A saved training as files. A folder has the latest checkpoints, each complete:
//
//   step-00000020/ rank-0 rank-1 ...   one shard per rank: elements, and a footer that names them
//                  source-config.json  and others (source_files.h): what the model came with
//                  manifest.json       for the whole: model, step, the footers' checksums
//   .saving-00000030/                  is being written, and gets its name when all is done
//   .damaged-step-00000010/            could not be used by a run that continued from another one
//   .lock                              of the run that writes here; a number that only it knows
//
// The manifest ends with a checksum of everything before it; a shard: shard.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/files/file_watch.h"
#include "runtime/files/shard.h"
#include "runtime/files/source_files.h"
#include "schema/base/status.h"

namespace pp {

struct Manifest {
  int format = 0;          // of the file; if it is not one that is read, the rest is missing
  std::string model;       // config.json
  std::string lora;        // the plan's --lora; empty: all was trained
  int64_t step = 0;        // steps done
  int64_t updates = 0;     // of every weight, in those steps
  bool by_epochs = false;  // how the training counts
  // Where it is in the data: passes over it, and sequences of the next one. None: an older file,
  // which has the count below alone.
  std::optional<int64_t> pass;
  int64_t sequence = 0;
  int64_t sequences = 0;         // in all steps, with those that fill an epoch's last one,
  int64_t sequence_length = 0;   // of so many tokens; 0: an older file, which does not say
  std::optional<uint64_t> data;  // the data's digest (digest.h); none: an older file
  uint64_t seed = 0;
  std::map<std::string, std::string> options;  // what decides the numbers (run/settings.h)
  // If the loss was scaled (kernels/loss_scale.h); else 0.
  double loss_scale = 0;   // of the next step
  int64_t good_steps = 0;  // since it changed
  int64_t skipped = 0;     // updates
  // The least loss of a validation so far (--keep-best), the step whose checkpoint has it, and what
  // it was measured with: the digest of the data, and how many targets.
  struct Best {
    int64_t step = 0;
    double loss = 0;
    uint64_t data = 0;
    int64_t targets = 0;
  };
  std::optional<Best> best;
  struct Shard {
    int64_t bytes = 0;
    uint64_t footer_sum = 0;
  };
  std::vector<Shard> shards;                      // by rank
  std::optional<std::vector<SourcePart>> source;  // none: it is not known, as of an older file
};
// 1: peers' parts of a vocabulary had other rows. 2 is read: it has no position, and a pass had no
// sequence that the file's end does not fill.
inline constexpr int kManifestFormat = 3, kOldestManifestFormat = 2;
inline bool IsReadFormat(int format) {
  return format >= kOldestManifestFormat && format <= kManifestFormat;
}

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
  // Keeps the last `keep` checkpoints, at least two. Invalid: it cannot be created or synced, or
  // another run writes into it.
  static Result<SaveFolder> Open(const std::string& dir, int64_t keep = 2);
  SaveFolder(SaveFolder&& other) noexcept;
  SaveFolder& operator=(SaveFolder&&) = delete;
  ~SaveFolder();

  // The number in the folder's .lock, by which other processes know that they see the same folder;
  // 0: there is none.
  static uint64_t NumberIn(const std::string& dir);

  // The run continues from the checkpoint of this step; later ones could not be used.
  void GoOnFrom(int64_t step);
  // What all checkpoints have with the model; null: what it came with is not known.
  void Keep(std::shared_ptr<const SourceFiles> source) { source_ = std::move(source); }
  // Invalid: the disk has no room for so many checkpoints more, of so many bytes each: what it
  // keeps, `besides` the last ones, and one that is being written.
  Status CheckRoom(int64_t checkpoints, int64_t bytes, int64_t besides = 0) const;
  // All shards have been written: writes the manifest, after inspecting the shards, gives the
  // folder its name, sets aside the checkpoints that could not be used, and removes all whole ones
  // but the last and the best. Failed: it is not saved. *notes: what stays there. `watch` may be
  // null.
  Status Finish(Manifest manifest, int ranks, FileWatch* watch, std::vector<std::string>* notes);
  // The checkpoint of this step is given up, unless it is whole.
  void Drop(int64_t step);

 private:
  void FinishOrRemove();
  Status SetAside(int64_t step);
  void Remove(int64_t step, std::vector<std::string>* notes);
  SaveFolder(std::string path, int lock, int64_t keep)
      : path_(std::move(path)), lock_(lock), keep_(keep) {}
  std::string path_;
  int lock_;
  int64_t keep_;
  std::shared_ptr<const SourceFiles> source_;
  std::vector<int64_t> whole_;  // steps, the latest at the end
};

}  // namespace pp
