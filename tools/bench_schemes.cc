// How fast pipec compiles each scheme: nanoseconds of processor time per instruction of the plan,
// with asynchronous and blocking messages and with a model, and how much more time twice the
// micro-batches and twice the devices take (twice the work should take twice the time). Then the
// memory that very many devices take.
//
//   bench_schemes [INSTRUCTIONS [SCHEME]]
//       about as many instructions in a plan; 2.6
//       million by default; of one scheme (beside 1F1B) only
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "compiler/compile.h"
#include "schema/base/number.h"
#include "schema/model/families.h"

namespace pp {
namespace {

constexpr int kDevices = 64;
constexpr int kRounds = 3;

struct Cost {
  double seconds = 0;  // of a processor
  double gib = 0;      // at the peak
  int64_t instructions = 0;
  double Nanoseconds() const { return seconds / static_cast<double>(instructions) * 1e9; }
};

int64_t InstructionsOf(const CompileOptions& options) {
  const auto program = Compile(options);
  if (!program.ok()) {
    fmt::print(stderr, "bench_schemes: error: {}: {}\n", options.scheme,
               program.status().message());
    _exit(1);
  }
  int64_t count = 0;
  for (const DeviceList& list : program->lists) count += std::ssize(list.body);
  return count;
}

// In a process of its own, whose memory is then known.
Cost Measure(const CompileOptions& options) {
  int pipe_ends[2];
  PP_CHECK(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  PP_CHECK(child >= 0);
  if (child == 0) {
    const int64_t count = InstructionsOf(options);
    _exit(write(pipe_ends[1], &count, sizeof count) == sizeof count ? 0 : 1);
  }
  int status = 0;
  rusage usage{};
  PP_CHECK(wait4(child, &status, 0, &usage) == child);
  if (status != 0) std::exit(1);
  Cost cost;
  PP_CHECK(read(pipe_ends[0], &cost.instructions, sizeof cost.instructions) ==
           sizeof cost.instructions);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  cost.seconds = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                 static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  cost.gib = static_cast<double>(usage.ru_maxrss) / (1 << 20);
  return cost;
}

// A model with a layer for each stage.
void AddModel(CompileOptions& options) {
  const Result<Program> schedule = BuildSchedule(options.scheme, options.shape);
  PP_CHECK(schedule.ok());
  ModelConfig model{.family = FindFamily("gpt2"),
                    .vocab_size = 64,
                    .max_positions = 8,
                    .hidden_size = 16,
                    .layers = schedule->stages,
                    .heads = 2,
                    .intermediate_size = 64};
  options.job.model = model;
}

// Micro-batches for so many instructions: a multiple of what every scheme accepts.
int MicroBatchesFor(CompileOptions options, int64_t instructions) {
  constexpr int kStep = 2 * kDevices;
  options.shape.microbatches = 2 * kStep;
  const int64_t few = InstructionsOf(options);
  return static_cast<int>(std::max<int64_t>(2, instructions * 2 / few)) * kStep;
}

void MeasureScheme(const std::string& scheme, int64_t instructions, double (&base)[3]) {
  constexpr const char* kWays[] = {"async", "blocking", "model"};
  for (int way = 0; way < 3; ++way) {
    CompileOptions options{.scheme = scheme,
                           .shape = {.devices = kDevices, .stages_per_device = 0}};
    options.p2p = way == 1 ? P2p::kBlocking : P2p::kAsync;
    options.shape.microbatches = MicroBatchesFor(options, instructions);
    auto measure = [&](int devices, int micros) {
      CompileOptions sized = options;
      sized.shape.devices = devices * kDevices;
      sized.shape.microbatches = micros * options.shape.microbatches;
      if (way == 2) AddModel(sized);
      return Measure(sized);
    };
    // The least of several, taken in turn: other programs only ever add to a time.
    Cost once, longer, wider;
    for (int round = 0; round < kRounds; ++round) {
      const auto keep = [round](Cost* least, const Cost& cost) {
        if (round == 0 || cost.seconds < least->seconds) *least = cost;
      };
      keep(&once, measure(1, 1));
      keep(&longer, measure(1, 2));
      keep(&wider, measure(2, 1));
    }
    const double taken = once.Nanoseconds();
    if (scheme == "1f1b") base[way] = taken;
    fmt::print("{:<14} {:<9} {:>9} {:>9.0f} {:>9.2f} {:>9.2f} {:>9.2f} {:>7.2f}\n", scheme,
               kWays[way], once.instructions, taken, taken / base[way],
               longer.Nanoseconds() / taken * 2, wider.Nanoseconds() / taken * 2, once.gib);
    std::fflush(stdout);
  }
}

int Main(int64_t instructions, std::string_view only) {
  fmt::print("{:<14} {:<9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7}\n", "scheme", "", "instr.",
             "ns/instr.", "to 1f1b", "2 M", "2 D", "GiB");
  double base[3];
  MeasureScheme("1f1b", instructions, base);
  for (const Scheme& scheme : Schemes())
    if (scheme.name != "1f1b" && (only.empty() || scheme.name == only))
      MeasureScheme(std::string(scheme.name), instructions, base);
  if (!only.empty()) return 0;
  const Cost many =
      Measure({.scheme = "v-half",
               .shape = {.devices = 20'000, .microbatches = 8, .stages_per_device = 0}});
  fmt::print("v-half, 20,000 devices, 8 micro-batches: {} instructions in {:.2f} s, {:.2f} GiB\n",
             many.instructions, many.seconds, many.gib);
  return 0;
}

}  // namespace
}  // namespace pp

int main(int argc, char** argv) {
  double instructions = 2.6e6;
  if (argc > 3 || (argc > 1 && !pp::ReadNumber(argv[1], &instructions))) {
    fmt::print(stderr, "usage: bench_schemes [INSTRUCTIONS [SCHEME]]\n");
    return 2;
  }
  return pp::Main(static_cast<int64_t>(instructions), argc > 2 ? argv[2] : "");
}
