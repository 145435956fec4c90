// Packed documents, whole runs: losses and gradients are those of transformers, which has seen each
// document alone (tests/reference/make_documents.py), whatever the plan; validations have the
// bounds of their own data; and room for bounds that are not used changes nothing.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "compiler/compile.h"
#include "runtime/compare/comparison.h"
#include "runtime/files/safetensors.h"
#include "runtime/run/train.h"
#include "tests/data_bytes.h"
#include "tests/folder.h"
#include "tests/kept_report.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

constexpr int kTokens = 24, kRows = 4;
constexpr double kClose = 1e-5;  // relative, of losses and, as vectors, of gradients

struct Layout {
  std::string scheme = "gpipe";
  int devices = 1, microbatches = kRows, size = 1, replicas = 1, tp = 1;
  std::string passes = "";

  std::string Text() const {
    return fmt::format("{} pp {}, {} x {}, dp {}, tp {} {}", scheme, devices, microbatches, size,
                       replicas, tp, passes);
  }
};

const Layout kLayouts[] = {
    {},
    {.microbatches = 1, .size = 4},
    {.scheme = "1f1b", .devices = 2, .microbatches = 2, .size = 2},
    {.scheme = "1f1b", .devices = 4},
    {.scheme = "1f1b", .devices = 4, .passes = "mario"},
    {.scheme = "1f1b", .devices = 2, .passes = "split-backward"},
    {.scheme = "zb-v", .devices = 2},
    {.scheme = "dualpipe-v", .devices = 2},
    {.scheme = "1f1b", .devices = 2, .microbatches = 2, .replicas = 2},
    {.scheme = "1f1b", .devices = 2, .tp = 2},
    {.scheme = "1f1b", .devices = 2, .tp = 2, .passes = "mario"},
    {.scheme = "zb-v", .devices = 2, .microbatches = 2, .replicas = 2, .tp = 2},
};

// What transformers computes for one family.
class Reference {
 public:
  explicit Reference(const std::string& family)
      : directory("tests/reference/documents/" + family),
        file_(std::move(*Safetensors::Open(directory + "/expected.safetensors"))) {
    std::ifstream stream(directory + "/expected.json");
    const auto expected = nlohmann::json::parse(stream);
    loss = expected["loss"];
    norm = expected["grad_norm"];
    std::vector<int32_t> numbers(kRows * kTokens + 1), starts(10);
    REQUIRE(file_.ReadInts("text", {kRows * kTokens + 1}, numbers.data()).ok());
    REQUIRE(file_.ReadInts("starts", {10}, starts.data()).ok());
    text.assign(numbers.begin(), numbers.end());
    begins.assign(starts.begin(), starts.end());
  }

  std::vector<float> Gradient(const Tensor& tensor) {
    std::vector<float> gradient(tensor.elements());
    for (const Slice& slice : SlicesOf(tensor, {})) {
      std::string name = slice.name;
      for (const std::string prefix : {"transformer.", "model."})
        if (name.starts_with(prefix)) name = name.substr(prefix.size());
      REQUIRE(file_
                  .ReadFloats("grad." + name, slice.shape,
                              {slice.row, slice.col, slice.rows, slice.cols, tensor.cols},
                              gradient.data() + slice.at)
                  .ok());
    }
    return gradient;
  }

  // The text, as a token file.
  std::string Write(const Folder& folder) const {
    std::ofstream(folder / "data", std::ios::binary)
        << std::string(TokenFileBytes(text, 2, begins));
    return folder / "data";
  }

  const std::string directory;
  double loss = 0, norm = 0;
  std::vector<uint32_t> text;
  std::vector<uint64_t> begins;

 private:
  Safetensors file_;
};

CompileOptions OptionsOf(const Layout& layout, const std::string& directory) {
  const Result<ModelConfig> model = LoadModelConfig(directory + "/config.json");
  REQUIRE(model.ok());
  return {.scheme = layout.scheme,
          .shape = {layout.devices, layout.microbatches, 0},
          .passes = layout.passes,
          .replicas = layout.replicas,
          .job = {.model = *model,
                  .micro_batch_size = layout.size,
                  .sequence_length = kTokens,
                  .tp = layout.tp,
                  .sequence_parallel = layout.tp > 1,
                  .documents = true}};
}

TrainOptions TrainingOn(const Reference& reference, const std::string& data) {
  TrainOptions options;
  options.data = {data};
  options.weights = reference.directory;
  options.documents = true;
  options.optimizer.steps = 1;
  options.optimizer.learning_rate = 0;
  options.stall_timeout = 60;
  return options;
}

// |a - b| / |b|, as vectors.
double RelativeError(const float* a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / size);
}

// The furthest of all gradients, which are there until the next step.
double FurthestGradient(const Program& program, const std::vector<StageCall>& steps,
                        Reference* reference) {
  double worst = 0;
  for (const StageCall& step : steps)
    for (const Tensor& tensor : LayoutStage(*program.job, step.stage).tensors) {
      INFO(tensor.name());
      const double far = RelativeError(reinterpret_cast<const float*>(step.wgrad + tensor.wgrad),
                                       reference->Gradient(tensor));
      CHECK(far < kClose);
      worst = std::max(worst, far);
    }
  return worst;
}

}  // namespace

TEST_CASE("losses and gradients are those of each document alone, whatever the plan") {
  for (const char* family : {"gpt2", "llama", "qwen3", "mistral"}) {
    Reference reference(family);
    const Folder folder;
    double loss = 0;  // of one device
    for (const Layout& layout : kLayouts) {
      INFO(family << " " << layout.Text());
      const Program program = MustCompile(OptionsOf(layout, reference.directory));
      TrainOptions options = TrainingOn(reference, reference.Write(folder));
      options.compare = true;
      std::vector<StageCall> steps;  // of all ranks
      std::mutex mutex;
      options.after_bind = [&](int, BoundList* list, std::vector<CollectiveArgs>*) {
        const std::lock_guard lock(mutex);
        for (const StageCall& call : list->calls)
          if (call.op == Op::kStep) steps.push_back(call);
      };
      double worst = 0;
      options.on_step = [&](const StepReport&) {
        if (layout.tp == 1) worst = FurthestGradient(program, steps, &reference);
        return Status();
      };
      const KeptReport report = TrainAndKeep(program, options);
      INFO(report.status.message());
      REQUIRE(report.status.ok());
      CHECK(report.steps[0].loss == Approx(reference.loss).epsilon(kClose));
      CHECK(report.steps[0].grad_norm.value() == Approx(reference.norm).epsilon(kClose));
      if (layout.tp == 1) CHECK(!steps.empty());
      if (loss == 0) loss = report.steps[0].loss;
      if (layout.size * layout.replicas * layout.tp == 1) CHECK(report.steps[0].loss == loss);
      Comparison comparison;
      const Status compared = Compare(program, options, report, &comparison);
      INFO(compared.message());
      CHECK(compared.ok());
      std::printf("%-8s %-40s loss %+.1e, norm %+.1e, gradients %.1e\n", family,
                  layout.Text().c_str(), report.steps[0].loss / reference.loss - 1,
                  *report.steps[0].grad_norm / reference.norm - 1, worst);
    }
  }
}

TEST_CASE("a validation has the documents of its own data") {
  for (const char* family : {"gpt2", "llama"}) {
    const Reference reference(family);
    const Folder folder;
    TrainOptions options = TrainingOn(reference, folder / "other");
    std::ofstream(folder / "other", std::ios::binary)
        << std::string(TokenFileBytes(reference.text, 2, {0, 40}));
    options.val_data = {reference.Write(folder)};
    options.val_every = 1;
    options.optimizer.steps = 2;
    for (const Layout& layout : {Layout{}, Layout{.scheme = "1f1b", .devices = 2, .tp = 2},
                                 Layout{.scheme = "zb-v", .devices = 2, .replicas = 2}}) {
      const KeptReport report =
          TrainAndKeep(MustCompile(OptionsOf(layout, reference.directory)), options);
      INFO(report.status.message());
      REQUIRE(report.status.ok());
      for (const StepReport& step : report.steps) {
        CHECK(step.val_loss.value() == Approx(reference.loss).epsilon(kClose));
        CHECK(std::abs(step.loss / reference.loss - 1) > 1e-3);
      }
    }
  }
}

TEST_CASE("room for bounds that are not used, and documents as long as rows, change nothing") {
  for (const char* family : {"gpt2", "mistral"}) {
    const Reference reference(family);
    const Folder folder;
    const std::vector<uint64_t> rows = {0, 24, 48, 72};
    std::vector<bool> counting(reference.text.size(), true);
    for (const uint64_t begin : rows) counting[begin] = false;
    std::ofstream(folder / "rows", std::ios::binary)
        << std::string(TokenFileBytes(reference.text, 2, rows, counting));
    TrainOptions options = TrainingOn(reference, folder / "rows");
    options.optimizer.steps = 3;
    options.optimizer.learning_rate = 1e-3;
    CompileOptions compile = OptionsOf({.scheme = "1f1b", .devices = 2}, reference.directory);
    const KeptReport packed = TrainAndKeep(MustCompile(compile), options);
    options.documents = false;
    const KeptReport unused = TrainAndKeep(MustCompile(compile), options);
    compile.job.documents = false;
    const KeptReport none = TrainAndKeep(MustCompile(compile), options);
    for (const KeptReport* report : {&packed, &unused}) {
      INFO(report->status.message());
      REQUIRE(report->status.ok());
      for (int step = 0; step < 3; ++step) {
        CHECK(report->steps[step].loss == none.steps[step].loss);
        CHECK(report->steps[step].grad_norm == none.steps[step].grad_norm);
      }
    }
  }
}

}  // namespace pp
