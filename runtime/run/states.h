// The states of a training, saved and loaded (files/checkpoint.h): each rank writes the parts that
// are its own, and finds those that it needs whoever wrote them, cut as they may be.
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

// A rank's states where they are.
struct RankStates {
  const Program* program = nullptr;
  Place place;
  Device* device = nullptr;
  // Of a stage's newest weights, from the beginning of their region.
  std::function<int64_t(int stage, int pipe)> newest;
  std::function<void()> on_piece;  // something has been written
};

// Writes this rank's shard: what the first replica's first pipe has or, under ZeRO-1, what each
// copy updates. Of what several tensor parallel peers have, the first one writes it.
Status SaveStates(const RankStates& states, const std::string& path);

// A whole checkpoint that can be loaded.
struct Checkpoint {
  std::string folder;
  Manifest manifest;
  std::vector<ShardReader> shards;
};

// The last one in `dir` that is whole, every byte of it, and of this model. What is wrong with
// later ones is in *notes. Invalid: there is none.
Result<Checkpoint> FindCheckpoint(const std::string& dir, const ModelConfig& model,
                                  std::vector<std::string>* notes);

// All states of the rank's device. Invalid: the checkpoint lacks some of them.
Status LoadStates(const Checkpoint& checkpoint, const RankStates& states);

}  // namespace pp
