// Everything that pipec compiles, trains: schemes x passes x p2p x replicas x ZeRO x devices, and
// models x schemes x pipeline, tensor and data parallelism, stages without layers, and packed
// documents, five steps each with ranks as threads, as a table.
//
//   same bits   one copy of the weights, one replica: losses and norms have the bits of one device
//   close       several copies or tensor-parallel peers: within 1e-5 of one device on the same
//               sequences (sums are added in another order, and rounding is all that may differ)
//   versions    PipeDream trains on older weights; pipedream_test has its reference, and peers are
//               within 1e-5 of one
//   refused     by pipec, with the option's name
//
// Every cell with copies runs twice, the second time with its ranks numbered the other way, and
// must have the same bits both times; ZeRO-1 must have those of ZeRO-0. With --late N every cell
// runs N more times on the late device (late_device.h), each time in another order, and must have
// the same bits again.
//
// A seeded sample by default (--seed S), all with --all.
#define CATCH_CONFIG_RUNNER

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <tuple>

#include "compiler/compile.h"
#include "runtime/compare/comparison.h"
#include "runtime/run/train.h"
#include "tests/folder.h"
#include "tests/kept_report.h"
#include "tests/late_device.h"
#include "tests/models.h"

namespace pp {
namespace {

bool all_cells = false;
unsigned sample_seed = 1;
int late_runs = 0;

constexpr int kSteps = 5, kMicros = 8;

// 8 stages have a layer each.
ModelConfig TinyModel(const std::string& family, bool tied) {
  return SmallModel(family, tied, /*layers=*/8, /*positions=*/8, /*llama_heads=*/6);
}

struct Cell {
  std::string scheme, passes;
  P2p p2p = P2p::kAsync;
  int replicas = 1, zero = 0, devices = 1;
  int pairs = 1;  // of chimera's pipes
  std::string family = "gpt2";
  int tp = 1;
  bool sequence_parallel = false;
  std::string recompute = "stage";
  bool keeps = false;  // all that it can
  Dtype dtype = Dtype::kFp32;
  std::vector<int> layers = {};  // of each stage; empty: as many each
  bool own_head = false;         // else the embedding's, where the scheme can
  bool documents = false;        // packed, of a line each

  std::string Text() const {
    std::string cut;
    for (const int of_stage : layers) cut += (cut.empty() ? "" : ",") + std::to_string(of_stage);
    return (family == "gpt2" ? "" : family + " ") + (own_head ? "untied " : "") +
           (documents ? "documents " : "") + (cut.empty() ? "" : "layers " + cut + " ") +
           (dtype == Dtype::kFp32 ? "" : std::string(NameOf(dtype)) + " ") +
           (tp > 1 ? "tp " + std::to_string(tp) + " " : "") +
           (sequence_parallel ? "sequence-parallel " : "") + scheme +
           (recompute == "stage" ? "" : " --recompute " + recompute) +
           (keeps ? " --keep " + TextOf(Kept(), kKeepNames) : "") +
           (pairs > 1 ? " --pipe-pairs " + std::to_string(pairs) : "") + " " +
           (passes.empty() ? "plain" : passes) + (p2p == P2p::kAsync ? " async" : " blocking") +
           " dp " + std::to_string(replicas) + " zero " + std::to_string(zero) + " D " +
           std::to_string(devices);
  }
  bool makes_versions() const { return scheme.starts_with("pipedream"); }
  bool tied() const { return !makes_versions() && !own_head; }
  std::vector<OperatorKind> Dropped() const {
    std::vector<OperatorKind> kinds;
    PP_CHECK(ReadKinds(recompute, kRecomputeNames, &kinds).ok());
    return kinds;
  }
  std::vector<OperatorKind> Kept() const {
    std::vector<OperatorKind> kinds;
    if (!keeps) return kinds;
    if (!sequence_parallel) kinds.push_back(OperatorKind::kNorm);
    kinds.push_back(family == "gpt2" ? OperatorKind::kGelu : OperatorKind::kSwiGlu);
    return kinds;
  }
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
                         .job = {.model = TinyModel(cell.family, cell.tied()),
                                 .micro_batch_size = 1,
                                 .layers_per_stage = cell.layers,
                                 .tp = cell.tp,
                                 .sequence_parallel = cell.sequence_parallel,
                                 .recompute = cell.Dropped(),
                                 .keep = cell.Kept(),
                                 .documents = cell.documents,
                                 .dtype = cell.dtype}};
  if (cell.passes == "fit-memory") options.fit.limit.values = {2};
  return Compile(options);
}

struct Numbers {
  std::vector<double> values;  // loss and norm, step after step
  bool operator==(const Numbers& other) const {
    return values.size() == other.values.size() &&
           std::memcmp(values.data(), other.values.data(), values.size() * sizeof(double)) == 0;
  }
};

// Over all runs, by piperun --compare.
Comparison furthest_compared;

Numbers MustTrain(const Program& program, const LateDevices* late = nullptr) {
  TrainOptions options;
  options.data = {program.job->documents ? SharedLines() : SharedText()};
  options.documents = program.job->documents;
  if (options.documents) options.end_of_text = '\n';
  options.optimizer.steps = kSteps;
  options.optimizer.learning_rate = 1e-3;
  options.optimizer.grad_clip = program.clip ? 1 : 0;
  // Far from 2^18, from which on gradients of such models overflow (loss_scale_test).
  options.optimizer.loss_scale = 8192;
  options.stall_timeout = 60;
  options.compare = late == nullptr && !program.MakesVersions();
  if (late != nullptr) late->AddTo(&options);
  const KeptReport report = TrainAndKeep(program, options);
  INFO(report.status.message());
  REQUIRE(report.status.ok());
  if (options.compare) {
    Comparison comparison;
    const Status compared = Compare(program, options, report, &comparison);
    INFO(compared.message());
    CHECK(compared.ok());
    CHECK(comparison.worst < kCompareLimit / 2);
    if (comparison.worst > furthest_compared.worst) furthest_compared = comparison;
  }
  Numbers numbers;
  for (const StepReport& step : report.steps) {
    numbers.values.push_back(step.loss);
    numbers.values.push_back(step.grad_norm.value_or(0));
    // The arena is what the plan says, on every rank.
    const Topology topology = TopologyOf(program);
    for (int rank = 0; rank < topology.ranks(); ++rank)
      CHECK(step.peak_bytes[rank] == program.lists[topology.PlaceOf(rank).device].arena_bytes);
  }
  REQUIRE(numbers.values.size() == 2 * kSteps);
  return numbers;
}

// One device, one micro-batch after the other, on the sequences of all replicas.
const Numbers& OneDevice(const Cell& cell, Dtype dtype) {
  static std::map<std::tuple<std::string, bool, int, Dtype, bool>, Numbers> known;
  const auto [found, is_new] =
      known.try_emplace({cell.family, cell.tied(), cell.replicas, dtype, cell.documents});
  if (is_new) {
    CompileOptions options{.scheme = "gpipe",
                           .shape = {1, kMicros * cell.replicas, 0},
                           .job = {.model = TinyModel(cell.family, cell.tied()),
                                   .micro_batch_size = 1,
                                   .documents = cell.documents,
                                   .dtype = dtype}};
    const auto program = Compile(options);
    REQUIRE(program.ok());
    found->second = MustTrain(*program);
  }
  return found->second;
}

// The maximum relative difference between two layouts' results. bfloat16 has 8 bits, fp16 11, and
// each operator rounds its output to them; a norm of the gradient, over all parameters, averages
// most of that. AdamW's first step moves a weight by the sign of its gradient, which rounding may
// decide: from then on a difference may be as large as a step, whatever the size of the rounding
// error.
struct Tolerance {
  double first;  // of the first step
  double later;  // of the others
  double fp32;   // of the losses, from those of fp32, absolutely
};
Tolerance ToleranceOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp32:
      return {.first = 1e-5, .later = 1e-5, .fp32 = 1e-5};
    case Dtype::kBf16:
      return {.first = 1e-2, .later = 1e-2, .fp32 = 2e-2};
    case Dtype::kFp16:
      return {.first = 1e-3, .later = 1e-2, .fp32 = 4e-3};
  }
  PP_CHECK(false);
}

// Relative, of losses and norms.
double CheckClose(const Numbers& a, const Numbers& b, Dtype dtype) {
  const Tolerance allowed = ToleranceOf(dtype);
  double most = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    if (a.values[i] == b.values[i]) continue;
    const double far = std::abs(a.values[i] - b.values[i]) / std::abs(b.values[i]);
    CHECK(far < (i < 2 ? allowed.first : allowed.later));
    most = std::max(most, far);
  }
  return most;
}

double FurthestLoss(const Numbers& a, const Numbers& b) {
  double most = 0;
  for (size_t i = 0; i < a.values.size(); i += 2)
    most = std::max(most, std::abs(a.values[i] - b.values[i]));
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
  if (program->Copies() > 1 || cell.tp > 1) {
    program->rank_order = RankOrder::kTpDpPp;
    CHECK(MustTrain(*program) == numbers);
  }
  if (cell.zero == 1) {
    Cell whole = cell;
    whole.zero = 0;
    CHECK(MustTrain(*CompileCell(whole)) == numbers);
  }
  if (cell.keeps && cell.tp > 1) {
    Cell again = cell;
    again.keeps = false;
    CHECK(MustTrain(*CompileCell(again)) == numbers);
  }
  for (int run = 0; run < late_runs; ++run) {
    const LateDevices late(1000 * run + 17, cell.tp > 1 ? TopologyOf(*program).ranks() + 1 : 1);
    CHECK(MustTrain(*program, &late) == numbers);
  }
  if (cell.makes_versions()) {
    CHECK(numbers.values[2 * kSteps - 2] < numbers.values[0]);  // it learns
    Cell alone = cell;
    alone.tp = 1;
    alone.sequence_parallel = false;
    if (cell.tp > 1) CheckClose(numbers, MustTrain(*CompileCell(alone)), cell.dtype);
    return "versions";
  }
  const Numbers& one = OneDevice(cell, cell.dtype);
  const double from_fp32 = FurthestLoss(numbers, OneDevice(cell, Dtype::kFp32));
  CHECK(from_fp32 < ToleranceOf(cell.dtype).fp32);
  if (program->Copies() == 1 && cell.tp == 1) {
    CHECK(numbers == one);
    return numbers == one ? "same bits" : "OTHER BITS";
  }
  const double far = CheckClose(numbers, one, cell.dtype);
  char text[64];
  std::snprintf(text, sizeof text, "close (%.1e, loss %.1e of fp32)", far, from_fp32);
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

// What the backwards do not make again, alone and among peers.
std::vector<Cell> KeepCells() {
  std::vector<Cell> cells;
  for (const char* family : {"gpt2", "llama", "qwen2", "qwen3", "mistral"})
    for (const char* passes : {"", "mario", "split-backward", "fit-memory"})
      for (const int tp : {1, 2})
        for (const bool sequence_parallel : {false, true})
          if (tp > 1 || !sequence_parallel)
            cells.push_back({.scheme = passes[0] == '\0' ? "zb-v" : "1f1b",
                             .passes = passes,
                             .devices = 2,
                             .family = family,
                             .tp = tp,
                             .sequence_parallel = sequence_parallel,
                             .recompute = std::string(passes) == "mario" ? "attention" : "stage",
                             .keeps = true});
  return cells;
}

// Each scheme, cut three ways, and what is dropped, split and kept.
std::vector<Cell> DocumentCells() {
  std::vector<Cell> cells;
  for (const char* family : {"gpt2", "llama", "qwen3", "mistral"}) {
    const auto add = [&](Cell cell) {
      cell.family = family;
      cell.documents = true;
      cells.push_back(cell);
    };
    for (const Scheme& scheme : Schemes())
      for (const int tp : {1, 2})
        for (const int replicas : {1, 2})
          add({.scheme = std::string(scheme.name),
               .replicas = replicas,
               .zero = replicas - 1,
               .devices = 2,
               .tp = tp,
               .sequence_parallel = tp > 1});
    for (const char* passes : {"mario", "split-backward", "fit-memory", "mario,split-backward"})
      for (const char* recompute : {"stage", "attention"})
        add({.scheme = "1f1b",
             .passes = passes,
             .devices = 4,
             .recompute = std::string(passes).starts_with("mario") ? recompute : "stage",
             .keeps = passes[0] != 'm'});
  }
  return cells;
}

std::vector<Cell> InAllTypes(std::vector<Cell> cells) {
  for (size_t i = 0, fp32 = cells.size(); i < fp32; ++i)
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp16}) {
      cells.push_back(cells[i]);
      cells.back().dtype = dtype;
    }
  return cells;
}

std::vector<Cell> ModelCells() {
  struct {
    int pp, tp, dp;
  } const shapes[] = {{4, 1, 1}, {2, 2, 1}, {2, 1, 2}, {1, 2, 2}, {2, 2, 2}};
  std::vector<Cell> cells;
  for (const char* family : {"gpt2", "llama", "qwen3"})
    for (const Scheme& scheme : Schemes())
      for (const auto& shape : shapes)
        for (const bool sequence_parallel : {false, true})
          if (shape.tp > 1 || !sequence_parallel)
            cells.push_back({.scheme = std::string(scheme.name),
                             .replicas = shape.dp,
                             .devices = shape.pp,
                             .family = family,
                             .tp = shape.tp,
                             .sequence_parallel = sequence_parallel});
  // What is dropped and recomputed, and the backward's halves.
  for (const char* family : {"gpt2", "llama", "qwen3"})
    for (const char* passes : {"mario", "split-backward", "mario,split-backward"})
      for (const bool sequence_parallel : {false, true})
        cells.push_back({.scheme = "1f1b",
                         .passes = passes,
                         .devices = 2,
                         .family = family,
                         .tp = 2,
                         .sequence_parallel = sequence_parallel});
  for (const char* family : {"gpt2", "llama", "qwen3"})
    for (const char* recompute : {"attention", "norm,linear", "residual"})
      for (const int tp : {1, 2})
        cells.push_back({.scheme = "1f1b",
                         .passes = "mario",
                         .devices = 2,
                         .family = family,
                         .tp = tp,
                         .sequence_parallel = tp > 1,
                         .recompute = recompute});
  return cells;
}

// Stages without layers: the first one has the embedding alone, the last one the final norm, the
// head and the loss, and one between them hands on what it gets.
std::vector<Cell> BareStageCells() {
  struct {
    const char* scheme;
    int devices;
    bool splits;  // backwards, so that passes cannot
  } const of_four_stages[] = {
      {"1f1b", 4, false}, {"interleaved", 2, false}, {"hanayo", 2, false},   {"chimera", 4, false},
      {"zb-h1", 4, true}, {"zb-v", 2, true},         {"dualpipe-v", 2, true}};
  struct {
    const char *passes, *recompute = "stage";
  } const ways[] = {{""},      {"fit-memory"},         {"split-backward"},
                    {"mario"}, {"mario", "attention"}, {"mario", "norm,linear"}};
  struct {
    int tp, replicas;
    bool sequence_parallel;
  } const shapes[] = {{1, 1, false}, {2, 1, false}, {2, 1, true}, {1, 2, false}};
  std::vector<Cell> cells;
  for (const char* family : {"gpt2", "llama"})
    for (const auto& [scheme, devices, splits] : of_four_stages)
      for (const auto& [passes, recompute] : std::span(ways).first(splits ? 2 : 6))
        for (const auto& shape : shapes)
          for (const std::vector<int>& layers : {std::vector{0, 4, 4, 0}, {0, 8, 0, 0}})
            cells.push_back({.scheme = scheme,
                             .passes = passes,
                             .replicas = shape.replicas,
                             .zero = shape.replicas - 1,
                             .devices = devices,
                             .family = family,
                             .tp = shape.tp,
                             .sequence_parallel = shape.sequence_parallel,
                             .recompute = recompute,
                             .layers = layers,
                             .own_head = family == std::string_view("llama")});
  return cells;
}

// Checks a sample of the cells, or all.
void CheckCells(std::vector<Cell> cells, size_t sample) {
  if (!all_cells) {
    std::mt19937 random(sample_seed);
    std::shuffle(cells.begin(), cells.end(), random);
    cells.resize(sample);
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
  std::printf("compared value by value: %.1f times what rounding explains, at most (%s)\n",
              furthest_compared.worst, furthest_compared.worst_name.c_str());
}

}  // namespace

TEST_CASE("everything that pipec compiles, trains") { CheckCells(AllCells(), 90); }

TEST_CASE("every model trains, cut three ways") { CheckCells(InAllTypes(ModelCells()), 50); }

TEST_CASE("packed documents train") { CheckCells(DocumentCells(), 40); }

TEST_CASE("stages without layers train") { CheckCells(BareStageCells(), 24); }

TEST_CASE("every model has the same bits whatever it keeps") {
  CheckCells(InAllTypes(KeepCells()), 12);
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
