// Everything that pipec compiles, trains: schemes x passes x p2p x replicas x ZeRO x devices, five
// steps each with ranks as threads, as a table.
//
//   same bits   one copy of the weights, one replica: losses and norms have the bits of one device
//   close       several copies: within 1e-5 of one device on the same sequences (sums over copies
//               are added in another order, and rounding is all that may differ)
//   versions    PipeDream trains on older weights; pipedream_test has its reference
//   refused     by pipec, with the option's name
//
// Every cell with copies runs twice and must have the same bits both times; ZeRO-1 must have those
// of ZeRO-0. With --late N every cell runs N times more on the late device (late_device.h), each
// time in another order, and must have the same bits again.
//
// A seeded sample by default (--seed S), all with --all.
#define CATCH_CONFIG_RUNNER
#include <unistd.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "compiler/compile.h"
#include "runtime/run/train.h"
#include "tests/kept_report.h"
#include "tests/late_device.h"
#include "tests/models.h"

namespace pp {
namespace {

bool all_cells = false;
unsigned sample_seed = 1;
int late_runs = 0;

constexpr int kSteps = 5, kMicros = 8;
constexpr int kSample = 90;  // cells

ModelConfig TinyModel(bool tied) {
  ModelConfig model = Gpt2Model();
  model.vocab_size = 64;
  model.max_positions = 8;
  model.hidden_size = 16;
  model.layers = 8;  // so that 8 stages have one each
  model.heads = 2;
  model.intermediate_size = 32;
  model.embedding_dropout = model.attention_dropout = model.residual_dropout = 0.1f;
  model.tied = tied;
  return model;
}

struct Cell {
  std::string scheme, passes;
  P2p p2p = P2p::kAsync;
  int replicas = 1, zero = 0, devices = 1;
  int pairs = 1;  // of chimera's pipes

  std::string Text() const {
    return scheme + (pairs > 1 ? " --pipe-pairs " + std::to_string(pairs) : "") + " " +
           (passes.empty() ? "plain" : passes) + (p2p == P2p::kAsync ? " async" : " blocking") +
           " dp " + std::to_string(replicas) + " zero " + std::to_string(zero) + " D " +
           std::to_string(devices);
  }
  bool tied() const { return !scheme.starts_with("pipedream"); }
};

Result<Program> CompileCell(const Cell& cell) {
  CompileOptions options{.scheme = cell.scheme,
                         .shape = {.devices = cell.devices,
                                   .microbatches = kMicros,
                                   .stages_per_device = 0,
                                   .pipe_pairs = cell.pairs},
                         .passes = cell.passes,
                         .p2p = cell.p2p,
                         .replicas = cell.replicas,
                         .zero = cell.zero,
                         .model = TinyModel(cell.tied()),
                         .micro_batch_size = 1};
  if (cell.passes == "fit-memory") options.fit.limit.values = {2};
  return Compile(options);
}

std::string DataFile() {
  static const std::string path = [] {
    const auto file = std::filesystem::temp_directory_path() /
                      ("training_grid_test." + std::to_string(getpid()) + ".txt");
    std::ofstream out(file);
    for (int i = 0; i < 4000; ++i) out << static_cast<char>(' ' + i * i % 31);
    return file.string();
  }();
  return path;
}

struct Numbers {
  std::vector<double> values;  // loss and norm, step after step
  bool operator==(const Numbers& other) const {
    return values.size() == other.values.size() &&
           std::memcmp(values.data(), other.values.data(), values.size() * sizeof(double)) == 0;
  }
};

Numbers MustTrain(const Program& program, const LateDevices* late = nullptr) {
  TrainOptions options;
  options.data = DataFile();
  options.optimizer.steps = kSteps;
  options.optimizer.learning_rate = 1e-3;
  options.optimizer.grad_clip = program.clip ? 1 : 0;
  options.stall_timeout = 60;
  if (late != nullptr) late->AddTo(&options);
  const KeptReport report = TrainAndKeep(program, options);
  INFO(report.status.message());
  REQUIRE(report.status.ok());
  Numbers numbers;
  for (const StepReport& step : report.steps) {
    numbers.values.push_back(step.loss);
    numbers.values.push_back(step.grad_norm.value_or(0));
  }
  REQUIRE(numbers.values.size() == 2 * kSteps);
  return numbers;
}

// One device, one micro-batch after the other, on the sequences of all replicas.
const Numbers& OneDevice(int replicas) {
  static std::map<int, Numbers> known;
  const auto [found, is_new] = known.try_emplace(replicas);
  if (is_new) {
    CompileOptions options{.scheme = "gpipe",
                           .shape = {1, kMicros * replicas, 0},
                           .model = TinyModel(true),
                           .micro_batch_size = 1};
    const auto program = Compile(options);
    REQUIRE(program.ok());
    found->second = MustTrain(*program);
  }
  return found->second;
}

double Furthest(const Numbers& a, const Numbers& b) {
  double most = 0;
  for (size_t i = 0; i < a.values.size(); ++i)
    most = std::max(most, std::abs(a.values[i] - b.values[i]) / std::abs(b.values[i]));
  return most;
}

// Trains a cell, checks it, and says what it is.
std::string Check(const Cell& cell) {
  auto program = CompileCell(cell);
  if (!program.ok()) {
    CHECK(program.status().code() == Code::kInvalid);
    CHECK(program.status().message().starts_with("--"));
    return "refused: " + program.status().message();
  }
  const Numbers numbers = MustTrain(*program);
  if (program->Copies() > 1) CHECK(MustTrain(*program) == numbers);
  if (cell.zero == 1) {
    Cell whole = cell;
    whole.zero = 0;
    CHECK(MustTrain(*CompileCell(whole)) == numbers);
  }
  for (int run = 0; run < late_runs; ++run) {
    const LateDevices late(1000 * run + 17);
    CHECK(MustTrain(*program, &late) == numbers);
  }
  if (!cell.tied()) {
    CHECK(numbers.values[2 * kSteps - 2] < numbers.values[0]);  // it learns
    return "versions";
  }
  const Numbers& one = OneDevice(cell.replicas);
  if (program->Copies() == 1) {
    CHECK(numbers == one);
    return numbers == one ? "same bits" : "OTHER BITS";
  }
  const double far = Furthest(numbers, one);
  CHECK(far < 1e-5);
  char text[64];
  std::snprintf(text, sizeof text, "close (%.1e)", far);
  return text;
}

std::vector<Cell> AllCells() {
  std::vector<Cell> cells;
  for (const Scheme& scheme : Schemes())
    for (const char* passes : {"", "mario", "fit-memory", "split-backward"})
      for (P2p p2p : {P2p::kAsync, P2p::kBlocking})
        for (int replicas : {1, 2, 3})
          for (int zero : {0, 1}) {
            for (int devices : {1, 2, 4})
              cells.push_back({std::string(scheme.name), passes, p2p, replicas, zero, devices});
            if (scheme.option == Scheme::kPipePairs)
              cells.push_back({std::string(scheme.name), passes, p2p, replicas, zero, 4, 2});
          }
  return cells;
}

}  // namespace

TEST_CASE("everything that pipec compiles, trains") {
  std::vector<Cell> cells = AllCells();
  if (!all_cells) {
    std::mt19937 random(sample_seed);
    std::shuffle(cells.begin(), cells.end(), random);
    cells.resize(kSample);
  }
  std::map<std::string, int> counts;
  for (const Cell& cell : cells) {
    INFO(cell.Text());
    const std::string result = Check(cell);
    std::printf("%-60s %s\n", cell.Text().c_str(), result.c_str());
    std::fflush(stdout);
    ++counts[result.substr(0, result.find_first_of(":("))];
  }
  for (const auto& [what, count] : counts) std::printf("%6d %s\n", count, what.c_str());
}

}  // namespace pp

int main(int argc, char** argv) {
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (std::strcmp(argv[i], "--all") == 0) {
      pp::all_cells = true;
    } else if (std::strcmp(argv[i], "--seed") == 0 && more) {
      pp::sample_seed = static_cast<unsigned>(std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--late") == 0 && more) {
      pp::late_runs = std::atoi(argv[++i]);
    } else {
      rest.push_back(argv[i]);
    }
  }
  return Catch::Session().run(static_cast<int>(rest.size()), rest.data());
}
