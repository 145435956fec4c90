// What a run's evaluations read: the data of validations, the best one so far, a sample's prompt.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "runtime/run/inputs.h"
#include "schema/base/number.h"
#include "schema/base/split.h"
#include "schema/routines.h"

namespace pp {
namespace {

constexpr int64_t kValidationBatches = 10;
constexpr int64_t kPrompt = 16;  // tokens

}  // namespace

Status Inputs::CheckEvaluation(const char* option) const {
  if (HasEvaluation(program_)) return {};
  return Status::Invalid(
      fmt::format("{}: the plan has no evaluation (pipec compiles one)", option));
}

Status Inputs::OpenValidation(std::vector<std::string>* notes) {
  PP_RETURN_IF_ERROR(CheckEvaluation("--val-data"));
  if (options_.val_every > 0 && program_.overlaps)
    return Status::Invalid(fmt::format(
        "--val-every: {} (steps of {} overlap: there is a validation loss after the last one)",
        options_.val_every, program_.scheme));
  Result<Dataset> dataset = OpenDataset(options_.val_data);
  PP_RETURN_IF_ERROR(dataset.status());
  val_dataset_ = std::make_unique<Dataset>(std::move(*dataset));
  Batches::Args args = BatchesOf(*val_dataset_);
  args.microbatches = program_.routines[FindRoutine(program_, kEvaluationRoutine)].microbatches;
  const int64_t each = Batches(args).PerStep(1), all = val_dataset_->sequences();
  const int64_t there = (all + each - 1) / each;
  int64_t count = options_.val_batches.value_or(std::min(kValidationBatches, there));
  if (count == 0) count = there;
  if (count > there)
    return Status::Invalid(fmt::format("--val-batches: {} ({} has {} batches of {} sequences)",
                                       count, Named(options_.val_data), there, each));
  if (!options_.val_batches && count < there)
    notes->push_back(fmt::format("validates with {} of {}'s {} sequences (--val-batches all)",
                                 count * each, Shown(Named(options_.val_data)), all));
  args.repeat_after = count;
  val_batches_ = std::make_unique<Batches>(args);
  validation_ = {val_batches_.get(), count, 0, options_.val_every};
  for (int64_t batch = 1; batch <= count; ++batch) {
    const Result<int64_t> tokens = val_batches_->Tokens(batch);
    PP_RETURN_IF_ERROR(tokens.status());
    validation_.tokens += *tokens;
  }
  if (validation_.tokens > 0) return {};
  return Status::Invalid(fmt::format(
      "--val-data: {}: no target of its first {} batches counts (at least one; --val-batches)",
      Named(options_.val_data), count));
}

Status Inputs::FindBest(std::vector<std::string>* notes) {
  if (options_.keep_best) {
    const Result<uint64_t> data = val_dataset_->Digest();
    PP_RETURN_IF_ERROR(data.status());
    measured_ = {.data = *data, .targets = validation_.tokens};
  }
  if (!checkpoint_ || !checkpoint_->manifest.best) return {};
  const Manifest::Best& best = *checkpoint_->manifest.best;
  const std::string folder = StepFolder(options_.save, best.step);
  const bool there = best.step == steps_before() || ReadManifest(folder).ok();
  const bool same = best.data == measured_.data && best.targets == measured_.targets;
  if (there && (same || !options_.keep_best)) {
    best_ = best;
  } else if (options_.keep_best) {
    notes->push_back(fmt::format(
        "the best validation loss so far, {:.9g} of {}, {}: the next one "
        "is the best",
        best.loss, Shown(folder), there ? "is that of another validation" : "is there no more"));
  }
  return {};
}

// The tokens of --prompt: a text's bytes, or ids.
Result<std::vector<int32_t>> Inputs::ReadPrompt(const Dataset& dataset) const {
  const std::string& prompt = options_.prompt;
  const int vocabulary = program_.job->model.vocab_size;
  std::vector<int32_t> tokens;
  if (dataset.is_text()) {
    for (const unsigned char byte : prompt) {
      tokens.push_back(byte);
      if (byte < vocabulary) continue;
      return Status::Invalid(
          fmt::format("--prompt: '{}': byte {} is not in the vocabulary (0 to {})", Shown(prompt),
                      byte, vocabulary - 1));
    }
    return tokens;
  }
  std::string ids = prompt;
  std::replace(ids.begin(), ids.end(), ',', ' ');
  for (const std::string_view id : Split(ids, ' ')) {
    if (id.empty()) continue;
    int32_t& token = tokens.emplace_back(-1);
    if (!ReadNumber(id, &token) || token < 0 || token >= vocabulary)
      return Status::Invalid(
          fmt::format("--prompt: '{}' (tokens from 0 to {}, with spaces between)",
                      Shown(std::string(id)), vocabulary - 1));
  }
  if (tokens.empty()) return Status::Invalid("--prompt: has no token (at least one)");
  return tokens;
}

// It continues the beginning of the validation's data, or else of the training's.
Status Inputs::OpenSample() {
  PP_RETURN_IF_ERROR(CheckEvaluation("--sample"));
  const Dataset& dataset = val_dataset_ ? *val_dataset_ : *dataset_;
  sample_is_text_ = dataset.is_text();
  if (!options_.prompt.empty()) {
    Result<std::vector<int32_t>> prompt = ReadPrompt(dataset);
    PP_RETURN_IF_ERROR(prompt.status());
    sample_ = {options_.sample, std::move(*prompt), options_.temperature};
    return {};
  }
  const int64_t tokens =
      std::min<int64_t>({kPrompt, program_.job->sequence_length, dataset.tokens()});
  std::vector<int32_t> first(tokens);
  PP_RETURN_IF_ERROR(dataset.Read(0, tokens, first.data()));
  sample_ = {options_.sample, std::move(first), options_.temperature};
  return {};
}

}  // namespace pp
