// What a run reads before its first step, and what follows from it: the checkpoint that it
// continues from, the data, the validation's, a sample's first tokens. Every process opens the
// same, but what is written again with the model (source_files.h), which rank 0's process has.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/agree.h"
#include "runtime/files/batches.h"
#include "runtime/files/checkpoint.h"
#include "runtime/files/dataset.h"
#include "runtime/files/source_files.h"
#include "runtime/run/train.h"

namespace pp {

class Inputs {
 public:
  // The program remains the caller's.
  Inputs(const Program& program, const TrainOptions& options)
      : program_(program), options_(options), optimizer_(options.optimizer) {}

  // Continues from this checkpoint. Before Open.
  void GoOnFrom(Checkpoint checkpoint) { checkpoint_.emplace(std::move(checkpoint)); }
  // Errors name the option. *notes: what the user should know.
  Status Open(std::vector<std::string>* notes);
  // What must be the same on all ranks, although each one has read its own.
  Status Digest(std::vector<Item>* items) const;

  // All others: once it is open.

  const std::optional<Checkpoint>& checkpoint() const { return checkpoint_; }  // none: a new start
  // Of the training, before the first step of this run; updates: of every copy's weights.
  int64_t steps_before() const { return checkpoint_ ? checkpoint_->manifest.step : 0; }
  int64_t updates_before() const;
  // Sequences of this run's length, counted in all steps: dropout goes on with this number.
  int64_t sequences_before() const;
  // Of the data, if the run saves or continues; else none.
  std::optional<uint64_t> data_digest() const { return data_digest_; }
  uint64_t seed() const {
    return checkpoint_ ? checkpoint_->manifest.seed : options_.seed.value_or(1);
  }

  // The best validation of the training that it continues, if there was any and its checkpoint is
  // there; with --keep-best, if it was measured as this run's are.
  const std::optional<Manifest::Best>& best() const { return best_; }
  // What is known of a validation's loss before the loss and the step are: for --keep-best.
  const Manifest::Best& measured() const { return measured_; }
  // Of the first step; a training continues with its saved scale.
  kernels::LossScale loss_scale() const;

  // Rank 0's process: of --weights, or of those that the checkpoint's training began with.
  const std::shared_ptr<const SourceFiles>& source() const { return source_; }

  const OptimizerOptions& optimizer() const { return optimizer_; }  // with the steps of all epochs
  const Batches& batches() const { return *batches_; }
  const Validation& validation() const { return validation_; }
  const SampleOptions& sample() const { return sample_; }
  bool sample_is_text() const { return sample_is_text_; }

 private:
  Status CheckCheckpoint(std::vector<std::string>* notes) const;
  Status CheckData(std::vector<std::string>* notes);
  Status CheckOrder() const;
  void TellChanges(std::vector<std::string>* notes) const;
  Position SavedPosition() const;
  Position PositionBefore() const;
  Status CheckLora() const;
  Status CheckDocuments() const;
  Status CheckAdapter(std::vector<std::string>* notes) const;
  Status CheckWeights(std::vector<std::string>* notes) const;
  Status OpenSource(std::vector<std::string>* notes);
  Status OpenData();
  Status CheckSteps() const;
  Status OpenValidation(std::vector<std::string>* notes);
  Status FindBest(std::vector<std::string>* notes);
  Status OpenSample();
  Result<std::vector<int32_t>> ReadPrompt(const Dataset& dataset) const;
  Status CheckEvaluation(const char* option) const;
  Result<Dataset> OpenDataset(const std::vector<std::string>& files) const;
  Batches::Args BatchesOf(const Dataset& dataset) const;

  const Program& program_;
  const TrainOptions options_;  // if the run is compared, they outlive it
  OptimizerOptions optimizer_;
  std::optional<Checkpoint> checkpoint_;
  std::optional<uint64_t> data_digest_;
  std::shared_ptr<const SourceFiles> source_ = std::make_shared<SourceFiles>();
  std::unique_ptr<Dataset> dataset_, val_dataset_;
  std::unique_ptr<Batches> batches_, val_batches_;
  Validation validation_;
  std::optional<Manifest::Best> best_;
  Manifest::Best measured_;
  SampleOptions sample_;
  bool sample_is_text_ = false;
};

}  // namespace pp
