#include "runtime/run/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/files/adapter_config.h"
#include "runtime/files/weight_files.h"
#include "runtime/run/run_options_table.h"
#include "runtime/run/settings.h"
#include "schema/routines.h"

namespace pp {

Status Inputs::Open(std::vector<std::string>* notes) {
  if (checkpoint_) PP_RETURN_IF_ERROR(CheckCheckpoint(notes));
  const bool first = options_.transport == nullptr || options_.transport->rank() == 0;
  PP_RETURN_IF_ERROR(CheckLora());
  PP_RETURN_IF_ERROR(CheckDocuments());
  const Job& job = *program_.job;
  if (job.shapes.tokens() < job.shapes.sequences() * job.sequence_length)
    notes->push_back(fmt::format(
        "of the data's sequences of {} tokens shorter micro-batches ({}) train the first "
        "tokens alone",
        job.sequence_length, TextOf(job.shapes)));
  if (first && !options_.weights.empty()) PP_RETURN_IF_ERROR(CheckWeights(notes));
  if (first && !options_.adapter.empty()) PP_RETURN_IF_ERROR(CheckAdapter(notes));
  if (program_.job->lora.given() && options_.weights.empty() && !checkpoint_)
    notes->push_back("the frozen weights are those of a new model (--weights has a trained one's)");
  if (first && (options_.exports || !options_.save.empty())) PP_RETURN_IF_ERROR(OpenSource(notes));
  PP_RETURN_IF_ERROR(OpenData());
  if (!options_.save.empty()) PP_RETURN_IF_ERROR(CheckData(notes));
  if (!options_.val_data.empty()) PP_RETURN_IF_ERROR(OpenValidation(notes));
  PP_RETURN_IF_ERROR(FindBest(notes));
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
  if (!options_.adapter.empty())
    PP_RETURN_IF_ERROR(add("--adapter", WeightFiles::Digest(AdapterPath(options_.adapter))));
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

// Older checkpoints count sequences alone. A pass over the data then had none that the file's end
// did not fill, and an epoch was as many whole steps as that took.
Position Inputs::SavedPosition() const {
  const Manifest& manifest = checkpoint_->manifest;
  if (manifest.pass) return {*manifest.pass, manifest.sequence};
  const int64_t length =
      manifest.sequence_length > 0 ? manifest.sequence_length : program_.job->sequence_length;
  int64_t pass = std::max<int64_t>(1, (dataset_->tokens() - 1) / length);
  if (manifest.by_epochs) {
    const int64_t step = std::max<int64_t>(1, manifest.sequences / manifest.step);
    pass = (pass + step - 1) / step * step;
  }
  return {manifest.sequences / pass, manifest.sequences % pass};
}

// Of this run's data, in sequences of this run's length.
Position Inputs::PositionBefore() const {
  if (!checkpoint_) return {};
  const int64_t before = checkpoint_->manifest.sequence_length, now = program_.job->sequence_length;
  Position position = SavedPosition();
  if (before != 0 && before != now)
    position.sequence = (position.sequence * before + now - 1) / now;
  // Other data may be shorter, and an end of less than a sequence of another length is left out.
  if (position.sequence >= dataset_->sequences()) position = {position.pass + 1, 0};
  return position;
}

Status Inputs::CheckCheckpoint(std::vector<std::string>* notes) const {
  const Manifest& manifest = checkpoint_->manifest;
  PP_RETURN_IF_ERROR(CheckModel(*checkpoint_, program_.job->model).In("--resume"));
  if (const std::string now = TextOf(program_.job->lora); manifest.lora != now) {
    const auto text = [](const std::string& given) {
      return given.empty() ? "without --lora" : "with --lora " + given;
    };
    return Status::Invalid(fmt::format("--resume: {}: was trained {} (the plan is compiled {})",
                                       checkpoint_->folder, text(manifest.lora), text(now)));
  }
  if (options_.seed && *options_.seed != manifest.seed)
    return Status::Invalid(
        fmt::format("--seed: {} ({} has {})", *options_.seed, checkpoint_->folder, manifest.seed));
  if (optimizer_.loss_scale && manifest.loss_scale > 0 &&
      static_cast<float>(*optimizer_.loss_scale) != loss_scale().scale)
    return Status::Invalid(fmt::format("--loss-scale: {} ({} has {})", *optimizer_.loss_scale,
                                       checkpoint_->folder, manifest.loss_scale));
  notes->push_back(fmt::format("continues from {}", Shown(checkpoint_->folder)));
  return {};
}

// That the data is what the checkpoint was trained with, and what else is not as it was.
Status Inputs::CheckData(std::vector<std::string>* notes) {
  const Result<uint64_t> digest = dataset_->Digest();
  PP_RETURN_IF_ERROR(digest.status());
  data_digest_ = *digest;
  if (!checkpoint_) return {};
  PP_RETURN_IF_ERROR(CheckOrder());
  const Manifest& manifest = checkpoint_->manifest;
  const std::string& folder = checkpoint_->folder;
  if (!manifest.data) {
    notes->push_back(folder + " does not say which data it was trained with");
  } else if (*manifest.data != *digest && !options_.new_data) {
    return Status::Invalid(
        fmt::format("--data: {}: is not the data that {} was trained with "
                    "(--new-data, if that is meant)",
                    Named(options_.data), folder));
  } else if (*manifest.data != *digest) {
    notes->push_back(
        fmt::format("{} is not the data that {} was trained with", Named(options_.data), folder));
  }
  TellChanges(notes);
  return {};
}

// In the middle of a pass the rest of it is known only by the order that it began in.
Status Inputs::CheckOrder() const {
  const Manifest& manifest = checkpoint_->manifest;
  const auto saved = manifest.options.find("--shuffle");
  const bool shuffled = saved != manifest.options.end() && saved->second == YesNo(true);
  if (SavedPosition().sequence == 0 || (!shuffled && !options_.shuffle) || options_.new_data)
    return {};
  if (shuffled != options_.shuffle)
    return Status::Invalid(
        fmt::format("--shuffle: is {}given, and {} is in the middle of a pass {} it (only where a "
                    "pass ends)",
                    shuffled ? "not " : "", checkpoint_->folder, shuffled ? "with" : "without"));
  const int now = program_.job->sequence_length;
  if (manifest.sequence_length == now) return {};
  return Status::Invalid(fmt::format(
      "--shuffle: the plan's sequences have {} tokens, and {} is in the middle of a pass over "
      "sequences of {} (another length only where a pass ends)",
      now, checkpoint_->folder, manifest.sequence_length));
}

// All ranks read the same files, which Digest compares: one of them checks what is in them.
Status Inputs::CheckWeights(std::vector<std::string>* notes) const {
  Result<WeightSource> weights = WeightSource::Open(options_.weights, program_.job->model);
  PP_RETURN_IF_ERROR(weights.status());
  std::vector<std::string> unknown;
  const std::string config = WeightFiles::Folder(options_.weights) + "/config.json";
  if (LoadModelConfig(config, &unknown).ok() && !unknown.empty())
    notes->push_back(UnknownKeysNote(config, unknown));
  return weights->CheckAllUsed(options_.unused_weights, notes);
}

// That options about adapters are for a plan that has some.
Status Inputs::CheckLora() const {
  if (program_.job->lora.given()) return {};
  const char* right = "a plan that was compiled with --lora";
  if (!options_.adapter.empty())
    return Status::Invalid(
        fmt::format("--adapter: {}: the plan has no adapters ({})", options_.adapter, right));
  if (options_.export_merged)
    return Status::Invalid(
        fmt::format("--export-merged: {}: the plan has no adapters ({}, or --export)",
                    options_.export_path, right));
  return {};
}

Status Inputs::CheckDocuments() const {
  if (options_.documents && !program_.job->documents)
    return Status::Invalid(
        "--documents: the plan has no room for their bounds (pipec compile --documents)");
  const int tokens = program_.job->model.vocab_size;
  if (options_.end_of_text.value_or(0) < tokens) return {};
  return Status::Invalid(fmt::format("--end-of-text: {} (a token of the model, 0 to {})",
                                     *options_.end_of_text, tokens - 1));
}

Status Inputs::CheckAdapter(std::vector<std::string>* notes) const {
  Result<WeightSource> made = WeightSource::New(seed());
  PP_RETURN_IF_ERROR(made.status());
  return made->OpenAdapter(options_.adapter, *program_.job, notes).In("--adapter");
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

// Where it goes on, and each setting that is not as it was.
void Inputs::TellChanges(std::vector<std::string>* notes) const {
  const Manifest& manifest = checkpoint_->manifest;
  const int64_t before = manifest.sequence_length, now = program_.job->sequence_length;
  const bool moves =
      (before != 0 && before != now) || (manifest.data && manifest.data != data_digest_);
  if (moves && options_.shuffle) {
    const Position position = PositionBefore();
    notes->push_back(fmt::format(
        "goes on at sequence {} of pass {}, in another order than before: of that pass some "
        "sequences come twice, and as many not at all",
        position.sequence, position.pass + 1));
  } else if (moves) {
    const Position position = PositionBefore();
    notes->push_back(fmt::format(
        "goes on at token {} of the data{}, after {} sequences of {}", position.sequence * now,
        position.pass > 0 ? fmt::format(" in pass {} over it", position.pass + 1) : "",
        manifest.sequences, before));
  }
  const bool by_epochs = options_.epochs > 0;
  if (manifest.by_epochs != by_epochs)
    notes->push_back(fmt::format(
        "goes on by --{} (before {}: by --{}){}", by_epochs ? "epochs" : "steps",
        Shown(checkpoint_->folder), manifest.by_epochs ? "epochs" : "steps",
        by_epochs ? "" : fmt::format(", and the learning rate counts {} steps", optimizer_.steps)));
  const std::string per_step = NumberSettings(program_, options_).at("sequences a step");
  const auto saved = manifest.options.find("sequences a step");
  const bool other_steps = saved != manifest.options.end() && saved->second != per_step;
  if (by_epochs && (moves || other_steps || !manifest.by_epochs))
    notes->push_back(
        fmt::format("--epochs: {}: {} steps of {} sequences follow the {} before, and the learning "
                    "rate counts {} in all",
                    options_.epochs, optimizer_.steps - steps_before(), per_step, steps_before(),
                    optimizer_.steps));
  const auto tell = [&](const auto& was, const auto& is) {
    for (const std::string& difference : Differences(was, is, Shown(checkpoint_->folder)))
      notes->push_back(difference);
  };
  tell(manifest.options, NumberSettings(program_, options_));
  // What would be another model's weights has been refused.
  const Result<ModelConfig> model = ParseModelConfig(manifest.model, checkpoint_->folder);
  if (model.ok()) tell(ModelSettings(*model), ModelSettings(program_.job->model));
}

// The bytes of a text are tokens of a model that was made for them.
Result<Dataset> Inputs::OpenDataset(const std::vector<std::string>& files) const {
  constexpr int kBytes = 256;
  const int tokens = program_.job->model.vocab_size;
  Dataset::Options rows{.vocab_size = tokens,
                        .sequence_length = program_.job->sequence_length,
                        .documents = options_.documents};
  if (options_.end_of_text) rows.end_of_text = static_cast<int32_t>(*options_.end_of_text);
  Result<Dataset> dataset = Dataset::Open(files, rows);
  if (!dataset.ok()) return dataset;
  if (const int64_t row = dataset->row(); row > 0 && row != program_.job->sequence_length)
    return Status::Invalid(
        fmt::format("{}: has an example every {} tokens, and the plan's sequences have {} (pipec "
                    "compile --seq-length {})",
                    Named(files), row, program_.job->sequence_length, row));
  if (!dataset->is_text() || options_.bytes) return dataset;
  const std::string right = "--bytes, if its bytes are to be the tokens, or a file of tokens";
  if (tokens > kBytes)
    return Status::Invalid(fmt::format("{}: is a text, and the plan's model has {} tokens ({})",
                                       Named(files), tokens, right));
  if (!options_.weights.empty())
    return Status::Invalid(
        fmt::format("{}: is a text, and --weights {} knows its tokenizer's tokens ({})",
                    Named(files), options_.weights, right));
  return dataset;
}

Batches::Args Inputs::BatchesOf(const Dataset& dataset) const {
  return {.dataset = &dataset,
          .replicas = program_.replicas,
          .microbatches = program_.microbatches,
          .micro_batch_size = program_.job->micro_batch_size,
          .sequence_length = program_.job->sequence_length,
          .shapes = program_.job->shapes};
}

Status Inputs::OpenData() {
  Result<Dataset> dataset = OpenDataset(options_.data);
  PP_RETURN_IF_ERROR(dataset.status());
  dataset_ = std::make_unique<Dataset>(std::move(*dataset));
  Batches::Args args = BatchesOf(*dataset_);
  args.ramp = program_.ramp;
  args.sizes = StepSizes(program_);
  args.steps_before = steps_before();
  args.epochs = options_.epochs;
  args.from = PositionBefore();
  args.sequences_before = sequences_before();
  if (options_.shuffle) args.shuffle = seed();
  batches_ = options_.make_batches ? options_.make_batches(args) : std::make_unique<Batches>(args);
  if (options_.epochs > 0) optimizer_.steps = steps_before() + batches_->Steps();
  return CheckSteps();
}

// That something is left to train.
Status Inputs::CheckSteps() const {
  if (!checkpoint_ || optimizer_.steps > steps_before()) return {};
  const bool by_epochs = options_.epochs > 0;
  return Status::Invalid(fmt::format("--{}: {} ({} has {} already)", by_epochs ? "epochs" : "steps",
                                     by_epochs ? options_.epochs : optimizer_.steps,
                                     checkpoint_->folder,
                                     by_epochs ? PositionBefore().pass : steps_before()));
}

}  // namespace pp
