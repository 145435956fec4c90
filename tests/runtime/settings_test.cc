// What decides the numbers of a training is said where a run that continues has it otherwise, or
// refused: every option, attribute of the plan and key of the model, one at a time.
#include "runtime/run/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/saved_run.h"

namespace pp {
namespace {

namespace fs = std::filesystem;

// What a run may have otherwise than the one that it continues: the name, what changes it, and what
// is said of both.
struct Change {
  const char* name;
  std::function<void(TrainOptions*)> options;
  std::function<void(CompileOptions*)> plan;
  const char* now;
  const char* before;
};

const Change kChanges[] = {
    {"--steps", nullptr, nullptr, "4", "2"},
    {"--lr", [](auto* t) { t->optimizer.learning_rate = 5e-4; }, nullptr, "0.0005", "0.001"},
    {"--lr-schedule", [](auto* t) { t->optimizer.cosine = false; }, nullptr, "constant", "cosine"},
    {"--min-lr", [](auto* t) { t->optimizer.min_learning_rate = 0; }, nullptr, "0", "1e-05"},
    {"--warmup-steps", [](auto* t) { t->optimizer.warmup_steps = 3; }, nullptr, "3", "4"},
    {"--beta1", [](auto* t) { t->optimizer.beta1 = 0.8; }, nullptr, "0.8", "0.9"},
    {"--beta2", [](auto* t) { t->optimizer.beta2 = 0.999; }, nullptr, "0.999", "0.95"},
    {"--eps", [](auto* t) { t->optimizer.epsilon = 1e-6; }, nullptr, "1e-06", "1e-08"},
    {"--weight-decay", [](auto* t) { t->optimizer.weight_decay = 0; }, nullptr, "0", "0.1"},
    {"--grad-clip", [](auto* t) { t->optimizer.grad_clip = 2; }, nullptr, "2", "1"},
    {"--loss-scale-every", [](auto* t) { t->optimizer.loss_scale_every = 9; }, nullptr, "9",
     "2000"},
    {"--backend", [](auto* t) { t->kernels["--backend"] = "cuda"; }, nullptr, "cuda", "cpu"},
    {"--gemms", [](auto* t) { t->kernels["--gemms"] = "f00"; }, nullptr, "f00", "none"},
    {"--dp", nullptr, [](auto* c) { c->replicas = 2; }, "2", "1"},
    {"sequences a step", nullptr, [](auto* c) { c->shape.microbatches = 5; }, "5", "8"},
    {"copies of the weights in a replica", nullptr, [](auto* c) { c->scheme = "chimera"; }, "2",
     "1"},
    {"older versions of the weights", [](auto* t) { t->optimizer.grad_clip = 0; },
     [](auto* c) { c->scheme = "pipedream-2bw"; }, "pipedream-2bw", "no"},
    {"--grad-norm", [](auto* t) { t->optimizer.grad_clip = 0; }, [](auto* c) { c->clip = false; },
     "off", "exact"},
    {"--micro-batch-size", nullptr, [](auto* c) { c->job.micro_batch_size = 2; }, "2", "1"},
    {"--seq-length", nullptr, [](auto* c) { c->job.sequence_length = 7; }, "7", "8"},
    {"--shapes", nullptr,
     [](auto* c) {
       c->job.shapes = {{{8, {1, 8}}}};
     },
     "8x8", "none"},
    {"--tp", nullptr, [](auto* c) { c->job.tp = 2; }, "2", "1"},
    {"--sequence-parallel", nullptr,
     [](auto* c) { c->job.tp = 2, c->job.sequence_parallel = true; }, "yes", "no"},
    {"--recompute", nullptr,
     [](auto* c) { c->passes = "mario", c->job.recompute = {OperatorKind::kAttention}; },
     "attention", "stage"},
    {"--keep", nullptr,
     [](auto* c) {
       c->job.keep = {OperatorKind::kNorm, OperatorKind::kGelu};
     },
     "norm,gelu", "none"},
    {"--dtype", nullptr, [](auto* c) { c->job.dtype = Dtype::kBf16; }, "bf16", "fp32"},
    {"--documents", [](auto* t) { t->documents = true, t->end_of_text = '$'; },
     [](auto* c) { c->job.documents = true; }, "yes", "no"},
    {"--end-of-text", [](auto* t) { t->documents = true, t->end_of_text = '$'; },
     [](auto* c) { c->job.documents = true; }, "36", "none"},
    // Of the model.
    {"attn_pdrop", nullptr, [](auto* c) { c->job.model.attention_dropout = 0.25f; }, "0.25", "0.1"},
    {"embd_pdrop", nullptr, [](auto* c) { c->job.model.embedding_dropout = 0; }, "0", "0.1"},
    {"resid_pdrop", nullptr, [](auto* c) { c->job.model.residual_dropout = 0; }, "0", "0.1"},
    {"initializer_range", nullptr, [](auto* c) { c->job.model.initializer_range = 0.5f; }, "0.5",
     "0.02"},
};

void SetBase(TrainOptions* t) {
  t->optimizer.cosine = true;
  t->optimizer.min_learning_rate = 1e-5;
  t->kernels = {{"--backend", "cpu"}, {"--gemms", "none"}};
}

ModelConfig Model() {
  ModelConfig model = TinyModel(false);
  model.tied = false;  // as PipeDream needs it
  return model;
}

constexpr Layout kLayout = {"1f1b", 2};

// A run of two steps that is saved; returns its checkpoint.
std::string Begin(const Folder& folder) {
  const Steps steps{.until = 2, .save_every = 2, .seed = 5, .options = SetBase};
  REQUIRE(Run(Model(), kLayout, folder, steps).status.message() == "");
  return StepFolder(folder / "saves", 2);
}

TEST_CASE("whatever decides the numbers is said where it is not as it was") {
  const Folder folder;
  const std::string last = Begin(folder);
  const auto manifest = ReadManifest(last);
  REQUIRE(manifest.ok());
  std::set<std::string> names = {"--shuffle"};  // which is refused (resume_test)
  for (const Change& change : kChanges) {
    INFO(change.name);
    names.insert(change.name);
    const Outcome on =
        Run(Model(), kLayout, folder,
            {.until = 4, .resume = true, .plan = change.plan, .options = [&](TrainOptions* t) {
               SetBase(t);
               if (change.options) change.options(t);
             }});
    CHECK(on.status.message() == "");
    CHECK(std::count(on.notes.begin(), on.notes.end(),
                     fmt::format("{}: {} (before {}: {})", change.name, change.now, last,
                                 change.before)) == 1);
    fs::remove_all(StepFolder(folder / "saves", 4));
  }
  for (const auto& [name, text] : manifest->options) {
    INFO(name);
    CHECK(names.contains(name));
  }
}

TEST_CASE("a key that decides what the weights mean is refused if it is not as it was") {
  const Folder folder;
  Begin(folder);
  std::set<std::string> names;
  for (const Change& change : kChanges) names.insert(change.name);
  int refused = 0;
  for (const auto& [key, value] : ModelSettings(Model())) {
    if (names.contains(key)) continue;
    INFO(key);
    nlohmann::json other = nlohmann::json::parse(ToJson(Model()));
    auto& changed = other[key];
    changed = changed.is_boolean()          ? nlohmann::json(!changed.get<bool>())
              : changed.is_number_integer() ? nlohmann::json(changed.get<int>() * 2)
              : changed.is_number()         ? nlohmann::json(changed.get<double>() * 2)
                                    : nlohmann::json(key == "model_type" ? "llama" : "gelu");
    const auto parsed = ParseModelConfig(other.dump(), "other");
    if (!parsed.ok()) continue;  // of no model
    const Outcome on = Run(*parsed, kLayout, folder, {.until = 4, .resume = true});
    CHECK(on.status.code() == Code::kInvalid);
    CHECK_THAT(on.status.message(), Catch::Contains(key + " is "));
    ++refused;
  }
  CHECK(refused >= 6);
}

}  // namespace
}  // namespace pp
