// How good fit-memory is and how long it takes on pipelines of any size. The gap is relative to a
// lower bound, which is itself some percent below the optimum in the middle of the memory range.
// Then, beside the schedules that sail-sg's zero-bubble repository makes for the same costs, under
// the memory that those take (tests/reference/zb_peers.csv; to be run where that is found).
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "compiler/compile.h"

namespace pp {
namespace {

struct Row {
  const char* scheme;
  int devices, microbatches;
  double limit;
};

constexpr Row kRows[] = {
    {"1f1b", 4, 16, 2},     {"1f1b", 8, 128, 3},   {"1f1b", 8, 128, 4},
    {"1f1b", 8, 128, 6},    {"1f1b", 16, 256, 8},  {"1f1b", 64, 1024, 8},
    {"1f1b", 64, 1024, 32}, {"chimera", 8, 32, 3}, {"interleaved", 8, 64, 3},
    {"zb-h1", 8, 64, 4},    {"zb-v", 8, 64, 4},    {"interleaved", 64, 1024, 16},
};

// A row of zb_peers.csv: how long F, I and W of a stage take, and a message; the schedule's
// makespan, and the activations that it holds.
struct Peer {
  std::string costs, name;
  double f, i, w, latency;
  int devices, microbatches, stages_per_device;
  double makespan, peak;
};
std::vector<Peer> ReadPeers(const char* path) {
  std::ifstream file(path);
  std::vector<Peer> peers;
  std::string line;
  for (std::getline(file, line); std::getline(file, line);) {
    std::istringstream cells(line);
    const auto text = [&] {
      std::string cell;
      std::getline(cells, cell, ',');
      return cell;
    };
    const auto number = [&] { return std::stod(text()); };
    const auto whole = [&] { return std::stoi(text()); };
    Peer peer{.costs = text()};
    peer.f = number(), peer.i = number(), peer.w = number(), peer.latency = number();
    peer.devices = whole(), peer.microbatches = whole(), peer.stages_per_device = whole();
    peer.name = text();
    peer.makespan = number();
    number();  // from a device's first instruction to its last, the most of all devices
    peer.peak = number();
    peers.push_back(peer);
  }
  return peers;
}

Status ComparePeers() {
  const std::vector<Peer> peers = ReadPeers("tests/reference/zb_peers.csv");
  if (peers.empty()) return Status::Invalid("tests/reference/zb_peers.csv: cannot be read");
  struct Sum {
    int rows = 0, slower = 0;
    double sum = 0, worst = -1;
  };
  std::map<std::pair<std::string, std::string>, Sum> sums;
  for (const Peer& peer : peers) {
    const bool own = peer.name == "v-half" || peer.name == "v-min" || peer.name == "zb-v";
    const double whole = peer.stages_per_device;  // stages in a device's time
    CompileOptions options{.scheme = own ? peer.name : "zb-h1",
                           .shape = {.devices = peer.devices,
                                     .microbatches = peer.microbatches,
                                     .stages_per_device = peer.stages_per_device},
                           .costs = fmt::format("f={},b={},bi={},bw={},latency={},in=1",
                                                whole * peer.f, whole * (peer.i + peer.w),
                                                whole * peer.i, whole * peer.w, peer.latency)};
    double makespan = 0;
    options.fit = {.limit = {.values = {peer.peak}},
                   .report = [&](const FitReport& r) { makespan = r.makespan; }};
    PP_RETURN_IF_ERROR(Compile(options).status());
    const double gap = makespan / peer.makespan - 1;
    Sum& sum = sums[{peer.name, peer.costs}];
    ++sum.rows;
    sum.slower += gap > 1e-4;
    sum.sum += gap;
    sum.worst = std::max(sum.worst, gap);
  }
  fmt::print("\n{:<12} {:<8} {:>5} {:>9} {:>9} {:>7}\n", "sail-sg's", "costs", "rows", "mean",
             "worst", "slower");
  for (const auto& [name, sum] : sums)
    fmt::print("{:<12} {:<8} {:>5} {:>+7.2f} % {:>+7.2f} % {:>7}\n", name.first, name.second,
               sum.rows, sum.sum / sum.rows * 100, sum.worst * 100, sum.slower);
  return {};
}

int Main() {
  fmt::print("{:<12} {:>3} {:>5} {:>6} {:>9} {:>10} {:>11} {:>8} {:>8}\n", "scheme", "D", "M",
             "limit", "kept all", "makespan", "lower bound", "gap", "seconds");
  for (const Row& row : kRows) {
    CompileOptions options{
        .scheme = row.scheme,
        .shape = {.devices = row.devices, .microbatches = row.microbatches, .stages_per_device = 0},
        .costs = "in=0.1"};
    FitReport report, free;
    double seconds = 0;
    const PassObserver observer{.end = [&](std::string_view name, const Program&, double taken) {
      if (name == "fit-memory") seconds = taken;
    }};
    options.fit = {.limit = {.values = {1.0 * row.microbatches}},
                   .report = [&](const FitReport& r) { free = r; }};
    Status status = Compile(options).status();
    options.fit = {.limit = {.values = {row.limit}},
                   .report = [&](const FitReport& r) { report = r; }};
    if (status.ok()) status = Compile(options, observer).status();
    if (!status.ok()) {
      fmt::print(stderr, "bench_fit: error: {}\n", status.message());
      return static_cast<int>(status.code());
    }
    fmt::print("{:<12} {:>3} {:>5} {:>6} {:>9g} {:>10g} {:>11.6g} {:>6.1f} % {:>8.2f}\n",
               row.scheme, row.devices, row.microbatches, row.limit, free.makespan, report.makespan,
               *report.lower_bound, (report.makespan / *report.lower_bound - 1) * 100, seconds);
  }
  if (const Status status = ComparePeers(); !status.ok()) {
    fmt::print(stderr, "bench_fit: error: {}\n", status.message());
    return static_cast<int>(status.code());
  }
  return 0;
}

}  // namespace
}  // namespace pp

int main() { return pp::Main(); }
