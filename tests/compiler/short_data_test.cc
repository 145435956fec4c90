// Data that fills no whole sequences and no whole batches: losses, gradients and validations are
// means over the targets that there are, whatever the schedule, the micro-batch size and the number
// of replicas, and a step without any target changes nothing.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <utility>

#include "compiler/compile.h"
#include "compiler/scheme.h"
#include "runtime/files/batches.h"
#include "tests/data_bytes.h"
#include "tests/folder.h"
#include "tests/kept_report.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

constexpr int kLength = 8;
constexpr double kClose = 1e-6;  // of fp32 sums in another order

struct Cut {
  std::string scheme = "gpipe";
  int devices = 1, microbatches = 1, size = 1, replicas = 1, zero = 0, tp = 1;
  std::string family = "gpt2";
  int length = kLength;
  Dtype dtype = Dtype::kFp32;

  std::string Text() const {
    return fmt::format("{} {} on {} devices, {} x {}, dp {}, zero {}, tp {}", family, scheme,
                       devices, microbatches, size, replicas, zero, tp);
  }
  int PerStep() const { return microbatches * size * replicas; }
  CompileOptions Options() const {
    ModelConfig model =
        SmallModel(family, /*tied=*/!scheme.starts_with("pipedream"), /*layers=*/4, kLength);
    model.embedding_dropout = model.attention_dropout = model.residual_dropout = 0;
    return {.scheme = scheme,
            .shape = {devices, microbatches, 0},
            .replicas = replicas,
            .zero = zero,
            .job = {.model = model,
                    .micro_batch_size = size,
                    .sequence_length = length,
                    .tp = tp,
                    .dtype = dtype}};
  }
};

std::string TextOf(int tokens) {
  std::string text;
  for (int i = 0; i < tokens; ++i) text += static_cast<char>(1 + (i * i + 5 * i) % 61);
  return text;
}

std::string Write(const Folder& folder, const std::string& name, const std::string& text) {
  std::ofstream(folder / name) << text;
  return folder / name;
}

KeptReport MustTrain(const Program& program, TrainOptions options) {
  if (!program.clip) options.optimizer.grad_clip = 0;
  KeptReport report = TrainAndKeep(program, options);
  INFO(report.status.message());
  REQUIRE(report.status.ok());
  return report;
}

bool Near(double a, double b) { return std::abs(a - b) <= kClose * std::abs(b); }

// The sum of the losses of each sequence of the text, by plans of exactly its length: nothing is
// ever filled up.
std::vector<double> SequenceLosses(const std::string& text, const std::string& family) {
  const Folder folder;
  std::vector<double> losses;
  for (size_t first = 0; first + 1 < text.size(); first += kLength) {
    const std::string one = text.substr(first, kLength + 1);
    const auto targets = static_cast<int>(one.size()) - 1;
    TrainOptions options;
    options.data = {Write(folder, "one", one)};
    options.optimizer.steps = 1;
    const Program program = MustCompile(Cut{.family = family, .length = targets}.Options());
    losses.push_back(MustTrain(program, options).steps[0].loss * targets);
  }
  return losses;
}

// Layouts that cut 6 or fewer sequences in different ways, some of them with replicas and
// micro-batches that have none.
const Cut kShapes[] = {
    {"gpipe", 1, 1, 1},        {"gpipe", 1, 1, 4},       {"gpipe", 1, 4, 1},
    {"1f1b", 2, 2, 2},         {"1f1b", 2, 5, 1, 2},     {"1f1b", 2, 1, 3, 4, 1},
    {"1f1b", 4, 4, 4},         {"interleaved", 2, 2, 1}, {"zb-v", 2, 4, 2},
    {"chimera", 2, 2, 3},      {"dualpipe", 2, 4, 1},    {"hanayo", 2, 2, 1, 2, 1},
    {"1f1b", 2, 2, 2, 1, 0, 2}};

TEST_CASE("losses and validations are means over the targets of the file") {
  const Folder folder;
  for (const char* family : {"gpt2", "llama"})
    for (const int tokens : {45, 41, 6}) {
      const std::string text = TextOf(tokens), path = Write(folder, "text", text);
      const std::vector<double> losses = SequenceLosses(text, family);
      const auto all = static_cast<int64_t>(losses.size());
      double whole = 0;
      for (const double loss : losses) whole += loss;
      for (Cut shape : kShapes) {
        shape.family = family;
        INFO(tokens << " tokens, " << shape.Text());
        const Program program = MustCompile(shape.Options());
        TrainOptions options;
        options.optimizer.learning_rate = 0;
        options.data = options.val_data = {path};
        options.val_batches = 0;
        const auto targets_of = [&](int64_t n) {
          return std::min<int64_t>(kLength, tokens - 1 - n * kLength);
        };
        for (const bool by_epochs : {true, false}) {
          options.epochs = by_epochs ? 2 : 0;
          options.optimizer.steps = 2 * ((all + shape.PerStep() - 1) / shape.PerStep());
          const KeptReport report = MustTrain(program, options);
          CHECK(static_cast<int64_t>(report.steps.size()) == options.optimizer.steps);
          int64_t next = 0;
          for (const StepReport& step : report.steps) {
            double sum = 0;
            int64_t targets = 0;
            for (int i = 0; i < shape.PerStep(); ++i, ++next) {
              if (by_epochs && next == all) break;
              sum += losses[next % all];
              targets += targets_of(next % all);
            }
            if (by_epochs && next == all) next = 0;
            CHECK(Near(step.loss, sum / static_cast<double>(targets)));
            REQUIRE(step.grad_norm);
            CHECK(std::isfinite(*step.grad_norm));
          }
          CHECK(Near(*report.steps.back().val_loss, whole / (tokens - 1)));
        }
      }
    }
}

// The loss of each target of the text, by plans that end with it: a model does not look ahead.
std::vector<double> TargetLosses(const std::string& text) {
  std::vector<double> losses;
  for (size_t first = 0; first + 1 < text.size(); first += kLength) {
    double before = 0;
    for (size_t count = 1; count <= kLength && first + count < text.size(); ++count) {
      const double sum = SequenceLosses(text.substr(first, count + 1), "gpt2")[0];
      losses.push_back(sum - std::exchange(before, sum));
    }
  }
  return losses;
}

TEST_CASE("losses and validations are means over the targets that count") {
  const Folder folder;
  const std::string text = TextOf(45);
  const std::vector<double> losses = TargetLosses(text);
  REQUIRE(losses.size() == 44);
  // The third sequence has no target, the fourth one.
  std::vector<bool> counts;
  for (int i = 0; i < 45; ++i) counts.push_back(i % 3 != 1 && (i <= 16 || i > 31));
  counts[27] = true;
  TrainOptions options;
  options.optimizer.learning_rate = 0;
  options.val_batches = 0;
  options.data = options.val_data = {
      Write(folder, "tokens", TokenFileBytes({text.begin(), text.end()}, 2, {0}, counts))};
  const auto add = [&](int64_t n, double* sum, int64_t* targets) {
    for (int64_t i = n * kLength; i < std::min<int64_t>((n + 1) * kLength, 44); ++i)
      if (counts[i + 1]) *sum += losses[i], ++*targets;
  };
  double whole = 0;
  int64_t all_targets = 0, empty = 0;
  for (int64_t n = 0; n < 6; ++n) add(n, &whole, &all_targets);
  for (const Cut& shape : kShapes)
    for (const int64_t epochs : {0, 2}) {
      INFO(shape.Text() << ", " << epochs << " epochs");
      options.epochs = epochs;
      options.optimizer.steps = 12 / shape.PerStep() + 1;
      const KeptReport report = MustTrain(MustCompile(shape.Options()), options);
      int64_t next = 0;
      for (const StepReport& step : report.steps) {
        double sum = 0;
        int64_t targets = 0;
        for (int i = 0; i < shape.PerStep() && (epochs == 0 || next < 6); ++i, ++next)
          add(next % 6, &sum, &targets);
        if (epochs > 0 && next == 6) next = 0;
        CHECK(step.empty == (targets == 0));
        if (targets > 0)
          CHECK(std::abs(step.loss - sum / static_cast<double>(targets)) < 1e-5 * step.loss);
        empty += targets == 0 ? 1 : 0;
      }
      CHECK(std::abs(*report.steps.back().val_loss - whole / static_cast<double>(all_targets)) <
            1e-5 * whole);
    }
  CHECK(empty > 2);
}

TEST_CASE("what a sequence lacks changes no gradient") {
  const Folder folder;
  for (const char* family : {"gpt2", "llama"})
    for (const int targets : {1, 3, 7}) {
      INFO(family << ", " << targets << " targets");
      TrainOptions options;
      options.data = {Write(folder, "text", TextOf(targets + 1))};
      options.optimizer.steps = 5;
      options.optimizer.learning_rate = 1e-2;
      const auto train = [&](Cut shape) {
        shape.family = family;
        return MustTrain(MustCompile(shape.Options()), options).steps;
      };
      const auto exact = train({.length = targets});
      options.epochs = 5;
      // The others, and one of two replicas, have nothing.
      for (const Cut& shape :
           {Cut{}, {"1f1b", 2, 3, 2}, {"chimera", 2, 2, 1}, {"1f1b", 2, 2, 2, 2, 1}}) {
        const auto filled = train(shape);
        REQUIRE(filled.size() == exact.size());
        for (size_t i = 0; i < exact.size(); ++i) {
          CHECK(Near(filled[i].loss, exact[i].loss));
          CHECK(std::abs(*filled[i].grad_norm - *exact[i].grad_norm) <= 1e-5 * *exact[i].grad_norm);
        }
      }
    }
}

TEST_CASE("a training over partial batches is the same however they are cut") {
  const Folder folder;
  TrainOptions options;
  options.data = options.val_data = {Write(folder, "text", TextOf(45))};
  options.val_batches = 0;
  options.val_every = 1;
  options.optimizer.learning_rate = 3e-3;
  options.optimizer.steps = 9;
  for (const int64_t epochs : {0, 4}) {
    options.epochs = epochs;
    std::vector<StepReport> one;
    for (const Cut& shape : {Cut{"gpipe", 1, 4, 1},
                             {"gpipe", 1, 1, 4},
                             {"1f1b", 2, 2, 2},
                             {"1f1b", 2, 1, 1, 4, 1},
                             {"zb-v", 2, 2, 1, 2},
                             {"chimera", 2, 2, 2},
                             {"1f1b", 2, 2, 2, 1, 0, 2}}) {
      INFO(shape.Text());
      const auto steps = MustTrain(MustCompile(shape.Options()), options).steps;
      if (one.empty()) one = steps;
      REQUIRE(steps.size() == one.size());
      for (size_t i = 0; i < steps.size(); ++i) {
        CHECK(Near(steps[i].loss, one[i].loss));
        CHECK(Near(*steps[i].val_loss, *one[i].val_loss));
      }
    }
  }
}

// Batches of which some steps have no target, and the others go on as if those were not there.
class WithEmptySteps : public Batches {
 public:
  WithEmptySteps(const Args& args, std::set<int64_t> empty)
      : Batches(args),
        tokens_(args.micro_batch_size * args.sequence_length),
        empty_(std::move(empty)) {}

  Result<int64_t> EmptySteps(int64_t step) const override { return EmptyBefore(step); }
  Result<int64_t> Tokens(int64_t step) const override {
    return empty_.contains(step) ? Result<int64_t>(0) : Batches::Tokens(step - EmptyBefore(step));
  }
  Status Inputs(int64_t step, int replica, int micro, int32_t* out) const override {
    return Batches::Inputs(step - EmptyBefore(step), replica, micro, out);
  }
  Status Targets(int64_t step, int replica, int micro, int32_t* out) const override {
    if (!empty_.contains(step))
      return Batches::Targets(step - EmptyBefore(step), replica, micro, out);
    std::fill_n(out, tokens_, -1);
    return {};
  }

 private:
  int64_t EmptyBefore(int64_t step) const {
    return std::distance(empty_.begin(), empty_.lower_bound(step));
  }

  const int64_t tokens_;
  const std::set<int64_t> empty_;
};

TEST_CASE("a step without any target makes no update, and has no loss") {
  const Folder folder;
  TrainOptions options;
  options.data = {Write(folder, "text", TextOf(200))};
  options.optimizer.learning_rate = 1e-2;
  std::vector<Cut> shapes = {{"1f1b", 2, 2, 1, 2, 1}, {"1f1b", 2, 2, 1, 1, 0, 2}};
  for (const Scheme& scheme : Schemes()) shapes.push_back({std::string(scheme.name), 2, 4, 1});
  shapes.push_back({.scheme = "1f1b", .devices = 2, .microbatches = 2, .dtype = Dtype::kFp16});
  shapes.push_back({.scheme = "1f1b", .devices = 2, .microbatches = 2, .dtype = Dtype::kBf16});
  const std::set<int64_t> empty = {1, 4, 5, 8};
  for (const Cut& shape : shapes) {
    const auto program = Compile(shape.Options());
    INFO(shape.Text() << ", " << program.status().message());
    REQUIRE(program.ok());
    options.optimizer.loss_scale_every = 2;
    options.optimizer.steps = 6;
    const auto without = MustTrain(*program, options).steps;
    TrainOptions gaps = options;
    gaps.optimizer.steps = 6 + static_cast<int64_t>(empty.size());
    gaps.make_batches = [&](const Batches::Args& args) {
      return std::make_unique<WithEmptySteps>(args, empty);
    };
    const auto with = MustTrain(*program, gaps).steps;
    size_t next = 0;
    for (const StepReport& step : with) {
      CHECK(step.empty == empty.contains(step.step));
      if (step.empty) {
        if (step.grad_norm) CHECK(*step.grad_norm == 0);
        CHECK(!step.skipped);
        continue;
      }
      REQUIRE(next < without.size());
      // With versions of the weights a step is one step older than the last.
      if (!program->MakesVersions()) {
        CHECK(step.loss == without[next].loss);
        CHECK(step.grad_norm == without[next].grad_norm);
        CHECK(step.loss_scale == without[next].loss_scale);
      }
      CHECK(std::isfinite(step.loss));
      ++next;
    }
    CHECK(next == without.size());
  }
}

}  // namespace
}  // namespace pp
