// The folders of a run, before its first step: all ranks go through these together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/run/states.h"
#include "runtime/run/train.h"
#include "schema/base/status.h"
#include "schema/model/config.h"

namespace pp {

// All ranks see rank 0's folder for checkpoints, and the same in it. Invalid: a rank's host has one
// of its own. The export is written by rank 0 alone; `note` tells the user if not all hosts see it.
Status CheckPlaces(const TrainOptions& options, Worker* worker,
                   const std::function<void(const std::string&)>& note);

// The latest checkpoint in options.save that is whole, in every byte, of which each rank reads its
// share. What is wrong with later ones is in *notes. Invalid: there is none. Failed: one cannot be
// read for another reason than damage.
Result<Checkpoint> FindCheckpoint(const TrainOptions& options, Worker* worker,
                                  const ModelConfig& model, std::vector<std::string>* notes);

}  // namespace pp
