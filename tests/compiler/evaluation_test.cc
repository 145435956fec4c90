// The evaluation of a plan, and its validation loss.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "compiler/compile.h"
#include "compiler/scheme.h"
#include "schema/proof/verify.h"
#include "schema/routines.h"
#include "schema/sections.h"
#include "schema/text.h"
#include "tests/kept_report.h"
#include "tests/late_device.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

constexpr int kMicros = 4, kTokens = 8;

ModelConfig TinyModel(bool tied, float dropout) {
  ModelConfig model = SmallModel("gpt2", tied, /*layers=*/4, /*positions=*/kTokens);
  model.embedding_dropout = model.attention_dropout = model.residual_dropout = dropout;
  return model;
}

CompileOptions OptionsOf(const std::string& scheme, float dropout) {
  return {.scheme = scheme,
          .shape = {2, kMicros, 0},
          .job = {.model = TinyModel(!scheme.starts_with("pipedream"), dropout),
                  .micro_batch_size = 1}};
}

// A text of so many letters, again and again the same 29, distinguished by `salt`. If `square` is 0
// each letter tells the next one.
class TextFile {
 public:
  TextFile(int size, int salt, int square = 1)
      : path_(std::filesystem::temp_directory_path() /
              ("evaluation_test." + std::to_string(getpid()) + "." + std::to_string(salt))) {
    std::ofstream out(path_);
    for (int i = 0; i < size; ++i) out << static_cast<char>(' ' + (square * i * i + salt * i) % 29);
  }
  ~TextFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

KeptReport MustTrain(const Program& program, const TrainOptions& options) {
  KeptReport report = TrainAndKeep(program, options);
  INFO(report.status.message());
  REQUIRE(report.status.ok());
  return report;
}

TrainOptions Options(const Program& program, const TextFile& data, int64_t steps) {
  TrainOptions options;
  options.data = {data.path()};
  options.optimizer.steps = steps;
  options.optimizer.learning_rate = 1e-2;
  if (!program.clip) options.optimizer.grad_clip = 0;
  return options;
}

// The first batches of `data` by a model that learns nothing: computed by FW.
double ForwardLoss(const Program& program, const TextFile& data, int64_t batches) {
  TrainOptions options = Options(program, data, batches);
  options.optimizer.learning_rate = 0;
  double sum = 0;
  for (const StepReport& step : MustTrain(program, options).steps) sum += step.loss;
  return sum / static_cast<double>(batches);
}

TEST_CASE("a validation loss is that of the forwards, without dropout") {
  const TextFile data(2000, 1), other(2000, 2);
  for (const Scheme& scheme : Schemes()) {
    for (const P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
      INFO(scheme.name);
      CompileOptions options = OptionsOf(std::string(scheme.name), 0.3f);
      options.p2p = p2p;
      if (p2p == P2p::kBlocking) options.replicas = 2;
      const auto program = Compile(options);
      if (!program.ok()) continue;  // what is impossible with blocking messages
      REQUIRE(HasEvaluation(*program));
      options.job.model = TinyModel(options.job.model.tied, 0);
      const double right = ForwardLoss(MustCompile(options), other, 3);

      TrainOptions train = Options(*program, data, 2);
      train.val_data = {other.path()};
      train.val_batches = 3;
      train.optimizer.learning_rate = 0;
      const KeptReport report = MustTrain(*program, train);
      CHECK(!report.steps[0].val_loss);
      REQUIRE(report.steps[1].val_loss);
      // Sums of doubles in another order.
      CHECK(std::abs(*report.steps[1].val_loss - right) < 1e-12 * right);
      for (size_t rank = 0; rank < report.steps[1].peak_bytes.size(); ++rank)
        CHECK(report.steps[1].peak_bytes[rank] ==
              program->lists[rank % program->devices].arena_bytes);
    }
  }
}

// With the newest weights, which a resumed run would have, and peers, too.
TEST_CASE("a validation sees what the step before it has learnt") {
  const TextFile data(2000, 1), other(2000, 2);
  for (const char* scheme : {"1f1b", "chimera", "pipedream", "pipedream-2bw"}) {
    INFO(scheme);
    const Program program = MustCompile(OptionsOf(scheme, 0));
    TrainOptions train = Options(program, data, 6);
    const KeptReport plain = MustTrain(program, train);
    train.val_data = {other.path()};
    train.val_batches = 2;
    const KeptReport last = MustTrain(program, train);
    REQUIRE(last.steps[5].val_loss);
    // With the same file for both, the loss goes down.
    train.val_data = {data.path()};
    train.optimizer.steps = 40;
    const KeptReport longer = MustTrain(program, train);
    CHECK(*longer.steps[39].val_loss < 0.8 * longer.steps[0].loss);
    // The training proceeds as if there were none.
    for (int i = 0; i < 6; ++i) CHECK(last.steps[i].loss == plain.steps[i].loss);
    if (program.overlaps) continue;
    train.val_data = {other.path()};
    train.optimizer.steps = 6;
    train.val_every = 1;
    const KeptReport each = MustTrain(program, train);
    for (int i = 0; i < 6; ++i) {
      CHECK(each.steps[i].loss == plain.steps[i].loss);
      CHECK(each.steps[i].grad_norm == plain.steps[i].grad_norm);
      REQUIRE(each.steps[i].val_loss);
    }
    CHECK(*each.steps[5].val_loss == *last.steps[5].val_loss);
    CHECK(*each.steps[5].val_loss != *each.steps[4].val_loss);
  }
}

TEST_CASE("tensor parallel peers and late devices have the validation loss of one device") {
  const TextFile data(2000, 1), other(2000, 2);
  const auto loss = [&](const CompileOptions& options, const LateDevices* late = nullptr) {
    const Program program = MustCompile(options);
    TrainOptions train = Options(program, data, 2);
    train.val_data = {other.path()};
    train.val_every = 1;
    train.stall_timeout = 60;
    if (late != nullptr) late->AddTo(&train);
    return *MustTrain(program, train).steps[1].val_loss;
  };
  CompileOptions options = OptionsOf("1f1b", 0.1f);
  const double one = loss(options);
  const LateDevices late(7, 1);
  CHECK(loss(options, &late) == one);
  options.passes = "mario";
  options.job.recompute = {OperatorKind::kAttention};
  options.job.keep = {OperatorKind::kGelu};
  CHECK(loss(options) == one);
  options.job.tp = 2;
  CHECK(std::abs(loss(options) - one) < 1e-5 * one);
  options.job.sequence_parallel = true;
  CHECK(std::abs(loss(options) - one) < 1e-5 * one);
}

// The model learns to continue a text that repeats itself.
TEST_CASE("a sample is what the trained model goes on with, whoever makes it") {
  constexpr int kPrompt = kTokens, kSample = 40;
  const TextFile data(29 * 40, 12, 0);
  const auto sample = [&](const CompileOptions& options, float temperature, uint64_t seed = 1,
                          int64_t steps = 150, const LateDevices* late = nullptr) {
    const Program program = MustCompile(options);
    TrainOptions train = Options(program, data, steps);
    train.sample = kSample;
    train.temperature = temperature;
    train.seed = seed;
    train.stall_timeout = 60;
    if (late != nullptr) late->AddTo(&train);
    const KeptReport report = MustTrain(program, train);
    CHECK(report.prompt == kPrompt);
    CHECK(report.text);
    REQUIRE(report.sample.size() == kPrompt + kSample);
    return report.sample;
  };
  CompileOptions options = OptionsOf("1f1b", 0);
  std::vector<int32_t> text;
  for (int i = 0; i < kPrompt + kSample; ++i) text.push_back(' ' + 12 * i % 29);
  CHECK(sample(options, 0) == text);
  // After so few steps it has much to choose from.
  const std::vector<int32_t> drawn = sample(options, 1, 1, 5);
  CHECK(drawn != text);
  CHECK(sample(options, 1, 1, 5) == drawn);
  CHECK(sample(options, 1, 2, 5) != drawn);
  const LateDevices late(3, 1);
  CHECK(sample(options, 1, 1, 5, &late) == drawn);
  for (const char* scheme : {"gpipe", "zb-v", "chimera", "interleaved", "dualpipe"}) {
    INFO(scheme);
    CHECK(sample(OptionsOf(scheme, 0), 1, 1, 5) == drawn);
  }
  options.job.tp = 2;
  CHECK(sample(options, 1, 1, 5) == drawn);
  options.job.sequence_parallel = true;
  options.shape.microbatches = kMicros / 2;
  options.replicas = 2;
  CHECK(sample(options, 1, 1, 5) == drawn);
  CHECK(sample(OptionsOf("pipedream", 0), 0, 1, 300) == text);
}

// What devices do ahead of a slow one must not pile up before it.
TEST_CASE("an evaluation takes no more memory with more micro-batches") {
  const auto arenas = [](int microbatches) {
    CompileOptions options = OptionsOf("1f1b", 0);
    options.shape = {4, microbatches, 0};
    options.costs = "f=1:2:1:3,b=2:4:2:6";
    std::vector<int64_t> bytes;
    for (const DeviceList& list : MustCompile(options).lists) bytes.push_back(list.arena_bytes);
    return bytes;
  };
  // Except for the loss of each.
  const std::vector<int64_t> few = arenas(16), many = arenas(64);
  for (int d = 0; d < 4; ++d) CHECK(many[d] - few[d] <= 48 * 8 + 2 * kAlign);
}

// Without a norm nobody waits at the end of a step: its last halves may still be under way.
TEST_CASE("an evaluation waits for the step before it") {
  const TextFile data(2000, 1), other(2000, 2);
  for (const char* scheme : {"zb-h1", "zb-v", "interleaved"}) {
    INFO(scheme);
    CompileOptions options = OptionsOf(scheme, 0.1f);
    options.job.model.tied = false;
    options.clip = false;
    const Program program = MustCompile(options);
    TrainOptions train = Options(program, data, 6);
    train.val_data = {other.path()};
    train.val_every = 1;
    train.stall_timeout = 60;
    const KeptReport plain = MustTrain(program, train);
    for (const unsigned seed : {1, 2, 3, 4}) {
      const LateDevices late(seed, 1);
      TrainOptions later = train;
      late.AddTo(&later);
      const KeptReport report = MustTrain(program, later);
      for (int i = 0; i < 6; ++i) {
        CHECK(report.steps[i].loss == plain.steps[i].loss);
        CHECK(*report.steps[i].val_loss == *plain.steps[i].val_loss);
      }
    }
  }
}

TEST_CASE("of an evaluation every instruction is needed, once, and at its place") {
  for (const P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
    CompileOptions options = OptionsOf("interleaved", 0);
    options.p2p = p2p;
    const Program plan = MustCompile(options);
    REQUIRE(Verify(plan, Depth::kPlan).ok());
    for (int d = 0; d < plan.devices; ++d) {
      const std::vector<Instruction>& list = plan.lists[d].routines[0];
      REQUIRE(!list.empty());
      for (size_t i = 0; i < list.size(); ++i) {
        INFO("device " << d << " '" << ToText(list[i]) << "'");
        const auto broken = [&](const auto& change) {
          Program program = plan;
          change(program.lists[d].routines[0], program.lists[d].routines[0].begin() + i);
          const Status status = Verify(program, Depth::kPlan);
          return !status.ok() && status.message().starts_with("evaluation: ");
        };
        CHECK(broken([](auto& list, auto at) { list.erase(at); }));
        CHECK(broken([](auto& list, auto at) { list.insert(at, Instruction(*at)); }));
        for (const int slot : {0, 1})
          if (list[i].offset[slot] >= 0)
            CHECK(broken([&](auto&, auto at) { at->offset[slot] = 0; }));  // the weights'
        if (list[i].op == Op::kEvaluate)
          CHECK(broken([](auto&, auto at) { at->op = Op::kForward; }));
      }
      Program program = plan;
      program.lists[d].body.insert(program.lists[d].body.begin() + 1,
                                   {.op = Op::kEvaluate, .stage = d, .micro = 0});
      CHECK(!Verify(program, Depth::kPlan).ok());
    }
    CHECK(*Parse(Print(plan), "again") == [&] {
      Program text = plan;  // has no memory
      for (DeviceList& list : text.lists) {
        list.regions.clear();
        list.arena_bytes = 0;
        ForEachList(list, [](std::vector<Instruction>& one) {
          for (Instruction& i : one)
            std::fill(std::begin(i.offset), std::end(i.offset), int64_t{-1});
        });
      }
      return text;
    }());
  }
}

TEST_CASE("what cannot be validated is said before the first step") {
  const TextFile data(2000, 1), few(100, 2);
  const auto error = [&](const char* scheme, const TextFile& val_data, int64_t every,
                         std::optional<int64_t> batches) {
    const Program program = MustCompile(OptionsOf(scheme, 0));
    TrainOptions train = Options(program, data, 2);
    train.val_data = {val_data.path()};
    train.val_every = every;
    train.val_batches = batches;
    return TrainAndKeep(program, train).status.message();
  };
  // 13 sequences of 8 tokens.
  CHECK(error("1f1b", few, 0, 5) ==
        "--val-batches: 5 (" + few.path() + " has 4 batches of 4 sequences)");
  for (const auto count : {std::optional<int64_t>(), std::optional<int64_t>(4)})
    CHECK(error("1f1b", few, 0, count).empty());
  CHECK(error("1f1b", TextFile(2, 3), 0, std::nullopt).empty());
  CHECK(error("pipedream", data, 1, std::nullopt) ==
        "--val-every: 1 (steps of pipedream overlap: there is a validation loss after the last "
        "one)");
}

}  // namespace
}  // namespace pp
