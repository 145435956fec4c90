// The states of a training, saved and loaded (files/checkpoint.h): each rank writes its own parts,
// and finds those that it needs whoever wrote them and however they were cut.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/comm/topology.h"
#include "runtime/device/device.h"
#include "runtime/files/checkpoint.h"
#include "runtime/model/parameters.h"
#include "schema/program.h"

namespace pp {

// A rank's states in memory.
struct RankStates {
  const Program* program = nullptr;
  Place place;
  Device* device = nullptr;
  // Of a stage's newest weights, from the beginning of their region.
  std::function<int64_t(int stage, int pipe)> newest;
  std::function<void()> on_piece;  // called after each piece written
};

// Writes this rank's shard: the states of the first replica's first pipe or, under ZeRO-1, what
// each copy updates. What several tensor-parallel peers share is written by the first one.
Status SaveStates(const RankStates& states, const std::string& path);

// A whole checkpoint that can be loaded.
struct Checkpoint {
  std::string folder;
  Manifest manifest;
  std::vector<ShardReader> shards;
};

// The latest one in `dir` that is whole, in every byte, and of this model. What is wrong with later
// ones is in *notes. Invalid: there is none.
Result<Checkpoint> FindCheckpoint(const std::string& dir, const ModelConfig& model,
                                  std::vector<std::string>* notes);

// All states of the rank's device. Invalid: the checkpoint lacks some of them.
Status LoadStates(const Checkpoint& checkpoint, const RankStates& states);

}  // namespace pp
