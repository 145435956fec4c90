// The states of a training, saved and loaded (files/checkpoint.h): each rank writes its own parts,
// and finds those that it needs whoever wrote them and however they were cut.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/files/checkpoint.h"
#include "runtime/model/parameters.h"
#include "schema/program.h"
#include "schema/topology.h"

namespace pp {

// A rank's states in memory.
struct RankStates {
  const Program* program = nullptr;
  Place place;
  Device* device = nullptr;
  // Of a stage's newest weights, from the beginning of their region.
  std::function<int64_t(int stage, int pipe)> newest;
  std::function<void()> on_piece;  // called after each piece written
  FileWatch* watch = nullptr;
};

// Writes this rank's shard: the states of the first replica's first pipe or, under ZeRO-1, what
// each copy updates; of what is frozen its weights, once. What several tensor-parallel peers share
// is written by the first one. Failed: a number is not finite. *unsaved: the file cannot be
// written, which says nothing about the training.
Status SaveStates(const RankStates& states, const std::string& path, Status* unsaved);

// What a checkpoint of this model takes on a disk, but for names and manifests.
int64_t CheckpointBytes(const Job& job);

struct Checkpoint {
  std::string folder;
  Manifest manifest;
  std::vector<ShardReader> shards;
  SourceFiles source;  // rank 0's
};

// Opens a checkpoint, and verifies the bytes that are this rank's share: together the ranks read
// all of them. Nothing is verified if it is of another format or of another model, which is the
// caller's to say. Invalid: it is damaged, or a part is missing. Failed: it cannot be read.
Result<Checkpoint> OpenCheckpoint(const std::string& folder, const ModelConfig& model, int rank,
                                  int ranks);
// Invalid: it is of another model, or of an unknown format.
Status CheckModel(const Checkpoint& checkpoint, const ModelConfig& model);

// All states of the rank's device. Invalid: the checkpoint lacks some of them.
Status LoadStates(const Checkpoint& checkpoint, const RankStates& states);

}  // namespace pp
