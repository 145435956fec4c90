// How fast pipec is: a plan of 64 devices compiled, verified and written, phase by phase,
// for twice the micro-batches and for twice the devices (twice the work should take twice the
// time); the simulator; the proof for NCCL; then a plan of ten million instructions.
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <map>

#include "compiler/compile.h"
#include "compiler/simulate.h"
#include "schema/format/file.h"
#include "schema/nccl/prove.h"
#include "schema/proof/verify.h"

namespace pp {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Stop(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "bench_compile: error: {}\n", status.message());
  std::exit(static_cast<int>(status.code()));
}

// Phase -> seconds. The phases in the order in which they ran.
struct Phases {
  std::vector<std::string> order;
  std::map<std::string, double> seconds;
  void Add(const std::string& name, double taken) {
    if (seconds.emplace(name, 0).second) order.push_back(name);
    seconds[name] += taken;
  }
};

Phases Measure(int devices, int microbatches, const std::string& path) {
  Phases phases;
  const double begin = Now();
  auto program = Compile({.scheme = "1f1b", .shape = {devices, microbatches, 1}},
                         {.end = [&](std::string_view name, const Program&, double seconds) {
                           phases.Add(std::string(name), seconds);
                         }});
  Stop(program.status());
  const double compiled = Now();
  Stop(Save(*program, path));
  phases.Add("write", Now() - compiled);
  phases.Add("all", Now() - begin);
  return phases;
}

// Chimera on 32 devices, 64 micro-batches: what Mario's simulator needs 700 ms for.
void MeasureSimulator() {
  constexpr int kTimes = 200;
  auto program = Compile({.scheme = "chimera", .shape = {.devices = 32, .microbatches = 64}});
  Stop(program.status());
  std::vector<WaitsFor> waits_for;
  Stop(Verify(*program, Depth::kPlan, &waits_for));
  double best = 1e9;
  for (int i = 0; i < kTimes; ++i) {
    const double begin = Now();
    Stop(Simulate(*program, waits_for, CostModel()).status());
    best = std::min(best, Now() - begin);
  }
  size_t instructions = 0;
  for (const DeviceList& list : program->lists) instructions += list.body.size();
  fmt::print("chimera, 32 devices, 64 micro-batches, {} instructions: simulated in {:.3f} ms\n",
             instructions, best * 1e3);
}

// After the plain proof: for pairs of devices that need as many communicators as in 1F1B, and for
// pairs that need more.
void MeasureNccl(const CompileOptions& options) {
  auto program = Compile(options);
  Stop(program.status());
  size_t instructions = 0;
  for (const DeviceList& list : program->lists) instructions += list.body.size();
  double best = 1e9;
  int messages = 0;
  for (int i = 0; i < 3; ++i) {
    const double begin = Now();
    const auto needs = nccl::Prove(*program, {});
    Stop(needs.status());
    best = std::min(best, Now() - begin);
    messages = needs->assignment.Count(nccl::Use::kMessages);
  }
  fmt::print(
      "{}, {} devices, {} micro-batches, {} instructions: proved for NCCL ({} "
      "communicators for messages) in {:.3f} s\n",
      options.scheme, options.shape.devices, options.shape.microbatches, instructions, messages,
      best);
}

double PeakGiB() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

int Main() {
  const std::string path = std::filesystem::temp_directory_path() / "bench_compile.plan";
  constexpr int kMicros = 4096, kTries = 3;
  // The best of several tries: other programs may use the machine.
  Phases once = Measure(64, kMicros, path), twice = Measure(64, 2 * kMicros, path),
         wide = Measure(128, kMicros, path);
  auto best = [](Phases& a, const Phases& b) {
    for (auto& [name, seconds] : a.seconds) seconds = std::min(seconds, b.seconds.at(name));
  };
  for (int i = 1; i < kTries; ++i) {
    best(once, Measure(64, kMicros, path));
    if (i == 1)
      fmt::print("64 devices, {} micro-batches: peak memory {:.2f} GiB with twice as many\n",
                 kMicros, PeakGiB());
    best(twice, Measure(64, 2 * kMicros, path));
    best(wide, Measure(128, kMicros, path));
  }
  fmt::print("{:<18} {:>15} {:>15} {:>6} {:>15} {:>6}\n", "seconds", "D 64, M 4096", "D 64, M 8192",
             "ratio", "D 128, M 4096", "ratio");
  for (const std::string& name : once.order) {
    const double base = once.seconds[name];
    fmt::print("{:<18} {:15.3f} {:15.3f} {:6.2f} {:15.3f} {:6.2f}\n", name, base,
               twice.seconds[name], twice.seconds[name] / base, wide.seconds[name],
               wide.seconds[name] / base);
  }
  MeasureSimulator();
  MeasureNccl({.scheme = "1f1b", .shape = {64, kMicros}, .replicas = 2, .zero = 1});
  MeasureNccl({.scheme = "zb-v", .shape = {64, kMicros / 2, 0}});

  const Phases most = Measure(64, 16384, path);
  double begin = Now();
  Stop(LoadDevice(path, 31).status());
  const double opened = Now() - begin;
  begin = Now();
  auto program = Load(path);
  Stop(program.status());
  const double loaded = Now() - begin;
  begin = Now();
  Stop(Verify(*program, Depth::kPlan));
  size_t instructions = 0;
  for (const DeviceList& list : program->lists) instructions += list.body.size();
  fmt::print(
      "a plan of {} instructions ({} bytes): compiled, verified and written in {:.2f} s; one "
      "device's list opened in {:.3f} s, all in {:.3f} s, verified in {:.3f} s\n",
      instructions, std::filesystem::file_size(path), most.seconds.at("all"), opened, loaded,
      Now() - begin);
  std::filesystem::remove(path);
  return 0;
}

}  // namespace
}  // namespace pp

int main() { return pp::Main(); }
