#include "runtime/run/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/files/weight_files.h"
#include "schema/semantics/sections.h"

namespace pp {
namespace {

constexpr int64_t kValidationBatches = 10;
constexpr size_t kPrompt = 16;  // tokens

}  // namespace

Status Inputs::Open(std::vector<std::string>* notes) {
  if (checkpoint_) PP_RETURN_IF_ERROR(CheckCheckpoint(notes));
  const bool first = options_.transport == nullptr || options_.transport->rank() == 0;
  if (first && !options_.weights.empty()) PP_RETURN_IF_ERROR(CheckWeights(notes));
  if (first && (options_.exports || !options_.save.empty())) PP_RETURN_IF_ERROR(OpenSource(notes));
  PP_RETURN_IF_ERROR(OpenData());
  if (!options_.save.empty()) PP_RETURN_IF_ERROR(CheckData(notes));
  if (!options_.val_data.empty()) PP_RETURN_IF_ERROR(OpenValidation());
  return options_.sample > 0 ? OpenSample() : Status();
}

Status Inputs::Digest(std::vector<Item>* items) const {
  const auto add = [&](const char* option, const Result<uint64_t>& digest) {
    if (digest.ok()) items->push_back({option, *digest});
    return digest.status();
  };
  PP_RETURN_IF_ERROR(
      add("--data", data_digest_ ? Result<uint64_t>(*data_digest_) : dataset_->Digest()));
  if (val_dataset_) PP_RETURN_IF_ERROR(add("--val-data", val_dataset_->Digest()));
  uint64_t resumed = 0;
  if (checkpoint_)
    for (const ShardReader& shard : checkpoint_->shards)
      resumed = resumed * 0x9E3779B97F4A7C15u + shard.footer_sum();
  items->push_back({"--resume", resumed});
  return options_.weights.empty() ? Status()
                                  : add("--weights", WeightFiles::Digest(options_.weights));
}

// A loss that is scaled has a count of skipped updates, which STEP subtracts; other trainings count
// only updates that were made.
int64_t Inputs::updates_before() const {
  if (!checkpoint_) return 0;
  const Manifest& manifest = checkpoint_->manifest;
  return manifest.updates - (InfoOf(program_.job->dtype).scales_loss ? 0 : manifest.skipped);
}

kernels::LossScale Inputs::loss_scale() const {
  kernels::LossScale scale;
  if (checkpoint_ && checkpoint_->manifest.loss_scale > 0) {
    scale.scale = static_cast<float>(checkpoint_->manifest.loss_scale);
    scale.good = checkpoint_->manifest.good_steps;
    scale.skipped = checkpoint_->manifest.skipped;
  } else if (optimizer_.loss_scale) {
    scale.scale = static_cast<float>(*optimizer_.loss_scale);
  }
  return scale;
}

// A position in the data is one of tokens: with another length the training goes on at the next
// whole sequence.
int64_t Inputs::sequences_before() const {
  if (!checkpoint_) return 0;
  const Manifest& manifest = checkpoint_->manifest;
  const int64_t length = program_.job->sequence_length;
  if (manifest.sequence_length == 0 || manifest.sequence_length == length)
    return manifest.sequences;
  return (manifest.sequences * manifest.sequence_length + length - 1) / length;
}

std::map<std::string, std::string> Inputs::Options() const {
  const OptimizerOptions& o = options_.optimizer;
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  std::map<std::string, std::string> options = {
      {"--lr", text(o.learning_rate)},
      {"--lr-schedule", o.cosine ? "cosine" : "constant"},
      {"--warmup-steps", text(o.warmup_steps)},
      {"--weight-decay", text(o.weight_decay)},
      {"--grad-clip", text(o.grad_clip)},
      {"sequences a step", text(batches_->PerStep())},
      {"tokens a sequence", text(program_.job->sequence_length)},
      {"dtype", std::string(NameOf(program_.job->dtype))}};
  if (o.cosine) {  // which ends where the training does
    options["--min-lr"] = text(o.min_learning_rate);
    if (options_.epochs > 0) options["--epochs"] = text(options_.epochs);
    if (options_.epochs == 0) options["--steps"] = text(o.steps);
  }
  if (InfoOf(program_.job->dtype).scales_loss)
    options["--loss-scale-every"] = text(o.loss_scale_every);
  return options;
}

Status Inputs::CheckCheckpoint(std::vector<std::string>* notes) const {
  const Manifest& manifest = checkpoint_->manifest;
  PP_RETURN_IF_ERROR(CheckModel(*checkpoint_, program_.job->model).In("--resume"));
  if (options_.seed && *options_.seed != manifest.seed)
    return Status::Invalid(
        fmt::format("--seed: {} ({} has {})", *options_.seed, checkpoint_->folder, manifest.seed));
  if (optimizer_.loss_scale && manifest.loss_scale > 0 &&
      static_cast<float>(*optimizer_.loss_scale) != loss_scale().scale)
    return Status::Invalid(fmt::format("--loss-scale: {} ({} has {})", *optimizer_.loss_scale,
                                       checkpoint_->folder, manifest.loss_scale));
  if (options_.epochs == 0 && manifest.step >= optimizer_.steps)
    return Status::Invalid(fmt::format("--steps: {} ({} has {} already)", optimizer_.steps,
                                       checkpoint_->folder, manifest.step));
  if (manifest.by_epochs != (options_.epochs > 0))
    return Status::Invalid(fmt::format("--resume: {} counts {} (--{})", checkpoint_->folder,
                                       manifest.by_epochs ? "epochs" : "steps",
                                       manifest.by_epochs ? "epochs" : "steps"));
  notes->push_back(fmt::format("continues from {}", checkpoint_->folder));
  return {};
}

// That the data is what the checkpoint was trained with, and what else is not as it was.
Status Inputs::CheckData(std::vector<std::string>* notes) {
  const Result<uint64_t> digest = dataset_->Digest();
  PP_RETURN_IF_ERROR(digest.status());
  data_digest_ = *digest;
  if (!checkpoint_) return {};
  const Manifest& manifest = checkpoint_->manifest;
  const std::string& folder = checkpoint_->folder;
  if (!manifest.data) {
    notes->push_back(folder + " does not say which data it was trained with");
  } else if (*manifest.data != *digest && !options_.new_data) {
    return Status::Invalid(
        fmt::format("--data: {}: is not the data that {} was trained with "
                    "(--new-data, if that is meant)",
                    options_.data, folder));
  } else if (*manifest.data != *digest) {
    notes->push_back(
        fmt::format("{} is not the data that {} was trained with", options_.data, folder));
  }
  if (manifest.sequence_length != 0 && manifest.sequence_length != program_.job->sequence_length)
    notes->push_back(fmt::format("goes on at token {} of the data, after {} sequences of {}",
                                 sequences_before() * program_.job->sequence_length,
                                 manifest.sequences, manifest.sequence_length));
  const std::map<std::string, std::string> options = Options();
  for (const auto& [name, before] : manifest.options)
    if (const auto now = options.find(name); now != options.end() && now->second != before)
      notes->push_back(fmt::format("{}: {} (before {}: {})", name, now->second, folder, before));
  return {};
}

// All ranks read the same files, which Digest compares: one of them checks what is in them.
Status Inputs::CheckWeights(std::vector<std::string>* notes) const {
  Result<WeightSource> weights = WeightSource::Open(options_.weights, program_.job->model);
  PP_RETURN_IF_ERROR(weights.status());
  return weights->CheckAllUsed(options_.unused_weights, notes);
}

Status Inputs::OpenSource(std::vector<std::string>* notes) {
  if (checkpoint_) {
    source_ = std::make_shared<SourceFiles>(std::move(checkpoint_->source));
    if (options_.exports && !checkpoint_->manifest.source)
      notes->push_back(fmt::format(
          "{} is of an older piperun, which did not keep the config.json and the tokenizer of "
          "--weights: the exported config.json is the plan's",
          checkpoint_->folder));
  }
  if (options_.weights.empty()) return {};
  Result<SourceFiles> source = ReadSource(WeightFiles::Folder(options_.weights), notes);
  PP_RETURN_IF_ERROR(source.status());
  source_ = std::make_shared<SourceFiles>(std::move(*source));
  return {};
}

Result<Dataset> Inputs::OpenDataset(const std::string& path) const {
  return Dataset::Open(path, {.vocab_size = program_.job->model.vocab_size,
                              .sequence_length = program_.job->sequence_length});
}

Batches::Args Inputs::BatchesOf(const Dataset& dataset) const {
  return {.dataset = &dataset,
          .replicas = program_.replicas,
          .microbatches = program_.microbatches,
          .micro_batch_size = program_.job->micro_batch_size,
          .sequence_length = program_.job->sequence_length};
}

Status Inputs::OpenData() {
  Result<Dataset> dataset = OpenDataset(options_.data);
  PP_RETURN_IF_ERROR(dataset.status());
  dataset_ = std::make_unique<Dataset>(std::move(*dataset));
  Batches::Args args = BatchesOf(*dataset_);
  args.epochs = options_.epochs;
  args.sequences_before = sequences_before();
  batches_ = std::make_unique<Batches>(args);
  if (options_.epochs == 0) return {};
  optimizer_.steps = batches_->Steps();
  if (sequences_before() != steps_before() * batches_->PerStep())
    return Status::Invalid(
        fmt::format("--epochs: {} was trained with other batches than the plan's {} sequences "
                    "(--steps)",
                    checkpoint_->folder, batches_->PerStep()));
  if (steps_before() >= optimizer_.steps)
    return Status::Invalid(
        fmt::format("--epochs: {} ({} has them already)", options_.epochs, checkpoint_->folder));
  return {};
}

Status Inputs::CheckEvaluation(const char* option) const {
  if (HasEvaluation(program_)) return {};
  return Status::Invalid(
      fmt::format("{}: the plan has no evaluation (pipec compiles one)", option));
}

Status Inputs::OpenValidation() {
  PP_RETURN_IF_ERROR(CheckEvaluation("--val-data"));
  if (options_.val_every > 0 && HasSections(program_))
    return Status::Invalid(fmt::format(
        "--val-every: {} (steps of {} overlap: there is a validation loss after the last one)",
        options_.val_every, program_.scheme));
  Result<Dataset> dataset = OpenDataset(options_.val_data);
  PP_RETURN_IF_ERROR(dataset.status());
  val_dataset_ = std::make_unique<Dataset>(std::move(*dataset));
  Batches::Args args = BatchesOf(*val_dataset_);
  const int64_t each = Batches(args).PerStep(), there = val_dataset_->sequences() / each;
  args.repeat_after = options_.val_batches.value_or(std::min(kValidationBatches, there));
  if (there == 0)
    return Status::Invalid(
        fmt::format("--val-data: {}: has {} sequences of {} tokens (a batch "
                    "takes {})",
                    options_.val_data, val_dataset_->sequences(), args.sequence_length, each));
  if (args.repeat_after > there)
    return Status::Invalid(fmt::format("--val-batches: {} ({} has {} batches of {} sequences)",
                                       args.repeat_after, options_.val_data, there, each));
  val_batches_ = std::make_unique<Batches>(args);
  validation_ = {val_batches_.get(), args.repeat_after, options_.val_every};
  return {};
}

// It continues the beginning of the validation's data, or else of the training's.
Status Inputs::OpenSample() {
  PP_RETURN_IF_ERROR(CheckEvaluation("--sample"));
  const Dataset& dataset = val_dataset_ ? *val_dataset_ : *dataset_;
  std::vector<int32_t> first(program_.job->sequence_length);
  PP_RETURN_IF_ERROR(dataset.Inputs(0, first.data()));
  first.resize(std::min(kPrompt, first.size()));
  sample_ = {options_.sample, std::move(first), options_.temperature};
  sample_is_text_ = dataset.is_text();
  return {};
}

}  // namespace pp
