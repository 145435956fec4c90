// Trainings of a tiny model that save, and continue.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "tests/folder.h"
#include "tests/kept_report.h"
#include "tests/models.h"

namespace pp {

// With dropout, and a vocabulary that does not divide.
inline ModelConfig TinyModel(bool llama) {
  ModelConfig model = Gpt2Model({.vocab_size = 61,
                                 .max_positions = 8,
                                 .hidden_size = 24,
                                 .layers = 4,
                                 .heads = 4,
                                 .intermediate_size = 40});
  if (llama) {
    model.family = FindFamily("llama");
    model.embedding_dropout = model.residual_dropout = 0;
    model.kv_heads = 2;
    model.head_dim = 6;
    model.tied = false;
  }
  return model;
}

struct Layout {
  const char* scheme;
  int pp = 1, tp = 1, dp = 1, zero = 0;
  std::optional<bool> clip = {};
  std::vector<int> layers = {};  // of each stage; empty: as many each

  std::string Text() const {
    return std::string(scheme) + " pp " + std::to_string(pp) + " tp " + std::to_string(tp) +
           " dp " + std::to_string(dp) + " zero " + std::to_string(zero);
  }
};

struct Outcome {
  Status status;
  std::vector<double> numbers;  // loss and norm of each step
  std::vector<double> val_losses;
  std::optional<Manifest::Best> best;
  std::vector<std::string> notes;
  int64_t saved = 0, planned = 0;  // steps
  std::string unsaved;
};

struct Steps {
  int until = 6;
  int save_every = 0;
  bool resume = false;
  std::optional<uint64_t> seed;
  std::string data;  // by default the folder's
  bool new_data = false;
  int sequence_length = 8;
  double learning_rate = 1e-3;
  std::function<void(int64_t)> on_step;
  // What else is not as usual.
  std::function<void(CompileOptions*)> plan;
  std::function<void(TrainOptions*)> options;
  // What the run said, if it is asked for.
  std::vector<StepReport>* steps = nullptr;
  std::vector<Event>* events = nullptr;
};

inline Outcome Run(const ModelConfig& model, const Layout& shape, const Folder& folder,
                   const Steps& steps) {
  CompileOptions compile = {.scheme = shape.scheme,
                            .shape = {shape.pp, 8 / shape.dp, 0},
                            .replicas = shape.dp,
                            .zero = shape.zero,
                            .clip = shape.clip,
                            .job = {.model = model,
                                    .micro_batch_size = 1,
                                    .sequence_length = steps.sequence_length,
                                    .layers_per_stage = shape.layers,
                                    .tp = shape.tp}};
  if (steps.plan) steps.plan(&compile);
  const auto program = Compile(compile);
  INFO(program.status().message());
  REQUIRE(program.ok());
  Outcome outcome;
  TrainOptions options;
  options.data = {steps.data.empty() ? folder.WriteText("data.txt", 4000) : steps.data};
  options.new_data = steps.new_data;
  options.optimizer.steps = steps.until;
  options.optimizer.learning_rate = steps.learning_rate;
  options.optimizer.warmup_steps = 4;
  options.optimizer.grad_clip = program->clip ? 1 : 0;
  options.seed = steps.seed;
  options.resume = steps.resume;
  options.save_every = steps.save_every;
  options.on_note = [&](const std::string& note) { outcome.notes.push_back(note); };
  if (steps.options) steps.options(&options);
  std::optional<SaveFolder> saves;
  if (steps.resume || steps.save_every > 0) {
    options.save = folder / "saves";
    auto opened = SaveFolder::Open(options.save, options.keep);
    REQUIRE(opened.status().message() == "");
    saves.emplace(std::move(*opened));
    options.save_to = &*saves;
  }
  options.on_step = [&](const StepReport& step) {
    if (steps.on_step) steps.on_step(step.step);
    return Status();
  };
  const KeptReport report = TrainAndKeep(*program, options);
  outcome.status = report.status;
  outcome.saved = report.saved_step;
  outcome.planned = report.planned_steps;
  outcome.best = report.best;
  outcome.unsaved = report.unsaved.message();
  if (steps.steps != nullptr) *steps.steps = report.steps;
  if (steps.events != nullptr) *steps.events = report.events;
  for (const StepReport& step : report.steps) {
    outcome.numbers.push_back(step.loss);
    outcome.numbers.push_back(step.grad_norm.value_or(0));
    if (step.val_loss) outcome.val_losses.push_back(*step.val_loss);
  }
  return outcome;
}

}  // namespace pp
