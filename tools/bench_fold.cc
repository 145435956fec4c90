// How much of the gradients' reduction a fold hides on a slow network: two devices, eight
// micro-batches, two replicas, fold-aiao and fold-fifo compared with 1F1B that reduces early or
// late.
//
//   bench_fold [--trace FILE]      --trace: of fold-aiao, asleep
//
//   hideable   of each REDUCE_grad: its time, but not more than its rank still computes after its
//              start in the step
//   hidden     the part of its time in which that rank's compute lane was computing, not waiting
//
// Twice: with ranks that sleep for the cost of their instructions (sleeping_executor.h), which need
// no processor: at least 90 % hidden, and faster than 1F1B that reduces late; and with the kernels,
// where four ranks on fewer processors also wait for one another's kernels, whatever the schedule:
// there, it only has to be faster. The plans run in turn, in rounds.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "compiler/compile.h"
#include "runtime/run/train.h"
#include "schema/format/timeline.h"
#include "schema/model/families.h"
#include "tools/sleeping_executor.h"

namespace pp {
namespace {

constexpr int kDevices = 2, kMicros = 8, kReplicas = 2, kRounds = 3, kSkipped = 2;
constexpr double kTargetHidden = 0.9;

void Stop(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "bench_fold: error: {}\n", status.message());
  std::exit(static_cast<int>(status.code()));
}

// One way to run the four plans.
struct Setting {
  const char* name;
  ModelConfig model{.family = FindFamily("gpt2")};
  int sequence_length;
  const char* network;
  double unit;  // seconds that a forward sleeps on a whole device; 0: the kernels run
  int steps;
};

ModelConfig Model(int width, int vocabulary, int positions) {
  ModelConfig model{.family = FindFamily("gpt2")};
  model.vocab_size = vocabulary;
  model.max_positions = positions;
  model.hidden_size = width;
  model.layers = 8;
  model.heads = width / 32;
  model.intermediate_size = 4 * width;
  model.embedding_dropout = model.attention_dropout = model.residual_dropout = 0;
  model.tied = false;
  return model;
}

struct Case {
  std::string scheme;
  Reduce reduce = Reduce::kEarly;
  Program program;
  std::vector<double> times;                       // of all rounds: from step to step, seconds
  double reduction = 0, hideable = 0, hidden = 0;  // sums over ranks, steps and rounds

  std::string name() const { return scheme + (reduce == Reduce::kLate ? ", late" : ""); }
};

// Seconds of [begin, end) in which the rank computed; `compute` are its compute instructions in
// order.
double Covered(const std::vector<Event>& compute, double begin, double end) {
  double sum = 0;
  for (const Event& event : compute)
    sum +=
        std::max(0.0, std::min(end, event.start + event.duration) - std::max(begin, event.start));
  return sum;
}

// Adds what one rank hid in one step.
void AddHidden(const std::vector<Event>& compute, const std::vector<Event>& reductions, Case* c) {
  for (const Event& event : reductions) {
    const double end = event.start + event.duration;
    c->reduction += event.duration;
    c->hidden += Covered(compute, event.start, end);
    c->hideable += std::min(event.duration, Covered(compute, event.start, 1e300));
  }
}

void Evaluate(const TrainReport& report, int steps, Case* c) {
  for (int rank = 0; rank < kDevices * kReplicas; ++rank)
    for (int step = kSkipped + 1; step <= steps; ++step) {
      std::vector<Event> compute, reductions;
      for (const Event& event : report.events) {
        if (event.rank != rank || event.step != step) continue;
        const Op op = c->program.lists[event.device].body[event.index].op;
        if (op == Op::kReduceGrad) reductions.push_back(event);
        if (Info(op).lane == Lane::kCompute && op != Op::kWait) compute.push_back(event);
      }
      AddHidden(compute, reductions, c);
    }
  for (double time : StepTimes(c->program, report, kSkipped)) c->times.push_back(time);
}

void Measure(const Setting& setting, const std::string& data, const std::string& trace, Case* c) {
  TrainOptions run;
  run.data = {data};
  run.optimizer.steps = setting.steps;
  run.record = true;
  const auto network = ParseNetwork(setting.network);
  Stop(network.status());
  run.network = *network;
  if (setting.unit > 0)
    run.make_executor = [&](int) {
      return MakeSleepingExecutor(c->program, CostModel(), setting.unit);
    };
  const TrainReport report = Train(c->program, run);
  Stop(report.status);
  Evaluate(report, setting.steps, c);
  if (!trace.empty()) std::ofstream(trace) << ChromeTrace(c->program, report.events);
}

void Compare(const Setting& setting, const std::string& data, const std::string& trace) {
  std::vector<Case> cases{{.scheme = "1f1b", .reduce = Reduce::kLate},
                          {.scheme = "1f1b"},
                          {.scheme = "fold-aiao"},
                          {.scheme = "fold-fifo"}};
  for (Case& c : cases) {
    auto program =
        Compile({.scheme = c.scheme,
                 .shape = {kDevices, kMicros, 0},
                 .reduce = c.reduce,
                 .replicas = kReplicas,
                 .job = {.model = setting.model, .sequence_length = setting.sequence_length}});
    Stop(program.status());
    c.program = std::move(*program);
  }
  for (int round = 0; round < kRounds; ++round)
    for (Case& c : cases)
      Measure(setting, data, setting.unit > 0 && c.scheme == "fold-aiao" ? trace : "", &c);

  fmt::print("{}; {}; {} rounds of {} steps, the first {} left out\n", setting.name,
             setting.network, kRounds, setting.steps, kSkipped);
  fmt::print("{:<12} {:>9} {:>9} {:>13} | {:>9} {:>9} {:>9} | {:>7}\n", "ms a step", "best",
             "median", "to 1f1b late", "reduction", "hideable", "hidden", "share");
  auto median = [](Case& c) {
    std::sort(c.times.begin(), c.times.end());
    return c.times[c.times.size() / 2];
  };
  const double late = median(cases[0]);
  for (Case& c : cases) {
    // Milliseconds per rank and step.
    const double unit = 1e3 / (kDevices * kReplicas * kRounds * double(setting.steps - kSkipped));
    const bool fold = c.scheme.starts_with("fold");
    const double share = c.hideable > 0 ? c.hidden / c.hideable : 0;
    const double ratio = median(c) / late;
    const bool met = ratio < 1 && (setting.unit == 0 || share >= kTargetHidden);
    fmt::print("{:<12} {:9.1f} {:9.1f} {:13.3f} | {:9.1f} {:9.1f} {:9.1f} | {:5.1f} %{}\n",
               c.name(), c.times.front() * 1e3, median(c) * 1e3, ratio, c.reduction * unit,
               c.hideable * unit, c.hidden * unit, share * 100,
               !fold ? ""
               : met ? "  met"
                     : "  MISSED");
  }
}

int Main(const std::string& trace) {
  const std::string data = std::filesystem::temp_directory_path() /
                           fmt::format("bench_fold.{}", static_cast<int>(getpid()));
  {
    std::ofstream text(data);
    for (int i = 0; i < 20000; ++i) text << "the " << i * 7919 % 1000 << " ";
  }
  // A stage of the fold has 0.4 MB of gradients, one of 1F1B twice that; a byte of them is sent
  // and received once. So a fold's reduction takes 50 ms, its eight backwards of one stage 80 ms.
  Compare({.name = "asleep, F 10 ms on a whole device",
           .model = Model(64, 128, 4),
           .sequence_length = 4,
           .network = "latency=50us,bandwidth=8MB/s",
           .unit = 10e-3,
           .steps = 12},
          data, trace);
  Compare({.name = "kernels, 256 channels, T 128",
           .model = Model(256, 256, 128),
           .sequence_length = 128,
           .network = "latency=50us,bandwidth=100MB/s",
           .unit = 0,
           .steps = 8},
          data, "");
  std::filesystem::remove(data);
  return 0;
}

}  // namespace
}  // namespace pp

int main(int argc, char** argv) {
  return pp::Main(argc == 3 && std::string_view(argv[1]) == "--trace" ? argv[2] : "");
}
