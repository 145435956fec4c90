// One training step of GPT-2 124M (B=4, T=64, fp32, one stage, one thread), phase by phase, without
// plan or interpreter. Prints one line; tools/bench_step.sh sets it beside bench_torch.py.
#include <fmt/format.h>
#include <omp.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <vector>

#include "runtime/parameters.h"
#include "runtime/transformer.h"

namespace pp {
namespace {

constexpr const char* kPhases[] = {"forward", "backward", "norm", "AdamW"};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of this process: what else runs on the machine counts less.
double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Memory for the whole run, in huge pages where the system has them.
std::byte* Take(int64_t bytes) {
  constexpr int64_t kPage = 2 << 20;
  const int64_t size = (bytes + kPage - 1) / kPage * kPage;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kPage, size));
  PP_CHECK(memory != nullptr);
  madvise(memory, size, MADV_HUGEPAGE);
  std::memset(memory, 0, size);
  return memory;
}

class Bench {
 public:
  explicit Bench(const Job& job)
      : transformer_(job, 0, 1, &workspace_), layout_(transformer_.layout()) {
    values_.weights = weights_ = Take(layout_.weights_bytes);
    values_.wgrad = Take(layout_.wgrad_bytes);
    values_.scratch = Take(layout_.scratch_bytes);
    values_.stash = Take(layout_.stash_bytes);
    optimizer_ = Take(layout_.optimizer_bytes);
    InitWeights(layout_, 1, weights_);
    for (int64_t i = 0; i < job.tokens(); ++i) {
      text_.push_back(static_cast<int32_t>(i * 7919 % job.model.vocab_size));
    }
    values_.tokens = values_.targets = text_.data();
    values_.loss = &loss_;
    values_.loss_scale = 1.0 / static_cast<double>(job.tokens());
    norms_.resize(layout_.norm_blocks);
  }

  // Seconds of each phase.
  std::array<double, 4> Step(int64_t step) {
    std::array<double, 5> at{Now()};
    transformer_.Forward(values_);
    at[1] = Now();
    transformer_.Backward(values_);
    at[2] = Now();
    AddTied(layout_, values_.wgrad);
    SumSquares(layout_, values_.wgrad, norms_.data());
    double sum = 0;
    for (const double norm : norms_) sum += norm;
    at[3] = Now();
    const double scale = std::min(1.0, 1 / (std::sqrt(sum) + 1e-6));
    StepAdamW(layout_,
              {.learning_rate = 3e-4f,
               .weight_decay = 0.1f,
               .gradient_scale = static_cast<float>(scale),
               .step = step},
              values_.wgrad, optimizer_, weights_);
    at[4] = Now();
    return {at[1] - at[0], at[2] - at[1], at[3] - at[2], at[4] - at[3]};
  }

 private:
  Workspace workspace_{1};
  Transformer transformer_;
  const StageLayout& layout_;
  StageValues values_;
  std::byte *weights_, *optimizer_;
  std::vector<int32_t> text_;
  std::vector<double> norms_;
  double loss_ = 0;
};

int Run(float dropout, int steps) {
  const ModelConfig model = {.vocab_size = 50257,
                             .n_positions = 1024,
                             .n_embd = 768,
                             .n_layer = 12,
                             .n_head = 12,
                             .n_inner = 3072,
                             .embd_pdrop = dropout,
                             .attn_pdrop = dropout,
                             .resid_pdrop = dropout};
  Bench bench({model, 4, 64, {12}});
  std::vector<double> totals;
  double cpu = 1e9;
  std::array<double, 4> best{};
  for (int step = 1; step <= steps + 2; ++step) {
    const double cpu_start = CpuSeconds();
    const std::array<double, 4> seconds = bench.Step(step);
    cpu = std::min(cpu, CpuSeconds() - cpu_start);
    const double total = seconds[0] + seconds[1] + seconds[2] + seconds[3];
    if (step <= 2) continue;
    if (totals.empty() || total < *std::min_element(totals.begin(), totals.end())) best = seconds;
    totals.push_back(total);
  }
  std::sort(totals.begin(), totals.end());
  std::string phases;
  for (int i = 0; i < 4; ++i) phases += fmt::format("  {} {:.3f}", kPhases[i], best[i]);
  fmt::print(
      "piperun's kernels: best {:.3f} s, median {:.3f} s a step, CPU time {:.3f} s; of the "
      "best:{}\n",
      totals.front(), totals[totals.size() / 2], cpu, phases);
  return 0;
}

}  // namespace
}  // namespace pp

int main(int argc, char** argv) {
  CLI::App app{"A training step of GPT-2 124M"};
  float dropout = 0.1f;
  int steps = 5;
  app.add_option("--dropout", dropout)->check(CLI::Range(0.0, 0.99));
  app.add_option("--steps", steps)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  omp_set_num_threads(1);
  return pp::Run(dropout, steps);
}
