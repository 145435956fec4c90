#include "compiler/tune/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

#include "schema/model/families.h"

namespace pp {

std::vector<int> Divisors(int of, int given) {
  if (given > 0) return of % given == 0 ? std::vector<int>{given} : std::vector<int>();
  std::vector<int> low, high;
  for (int64_t divisor = 1; divisor * divisor <= of; ++divisor) {
    if (of % divisor != 0) continue;
    low.push_back(static_cast<int>(divisor));
    if (divisor * divisor != of) high.push_back(static_cast<int>(of / divisor));
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

std::vector<int> LegalPeers(const TuneOptions& options, int given) {
  const int most_peers = TensorParallelLimit(TableOf(options.job.model));
  const int node = options.machine.node > 0 ? options.machine.node : options.devices;
  std::vector<int> legal = Divisors(options.devices, given);
  std::erase_if(legal, [&](int tp) { return most_peers % tp != 0 || tp > node; });
  return legal;
}

Status CheckLayouts(const TuneOptions& o) {
  const std::vector<int> peers = LegalPeers(o, o.tp);
  if (peers.empty())
    return Status::Invalid(fmt::format("--tp: {} with --devices {} of {} ({})", o.tp, o.devices,
                                       Shown(o.machine.name), fmt::join(LegalPeers(o, 0), ", ")));
  std::set<int> pipelines, replicas;
  for (const int tp : peers)
    for (const int pp : Divisors(o.devices / tp, 0)) {
      if (pp > o.job.model.layers) continue;
      pipelines.insert(pp);
      if (o.pp == 0 || o.pp == pp) replicas.insert(o.devices / tp / pp);
    }
  if (replicas.empty())
    return Status::Invalid(fmt::format("--pp: {} with --devices {}, tp {} and {} layers ({})", o.pp,
                                       o.devices, fmt::join(peers, " or "), o.job.model.layers,
                                       fmt::join(pipelines, ", ")));
  std::set<int> sizes;
  for (const int dp : replicas)
    if (o.batch % dp == 0)
      for (const int size : Divisors(o.batch / dp, 0)) sizes.insert(size);
  if (sizes.empty()) {
    // Multiples of a replica number that is one itself say nothing more.
    std::vector<int> least;
    std::set<int64_t> near;
    for (const int dp : replicas) {
      if (std::any_of(least.begin(), least.end(), [&](int d) { return dp % d == 0; })) continue;
      least.push_back(dp);
      if (o.batch > dp) near.insert(o.batch / dp * dp);
      near.insert((int64_t{o.batch} / dp + 1) * dp);
    }
    return Status::Invalid(
        fmt::format("--global-batch-size: {} does not divide over the {} replicas that --devices "
                    "{}{}{} leave (a multiple of {}: {})",
                    o.batch, fmt::join(replicas, " or "), o.devices,
                    o.pp > 0 ? fmt::format(", --pp {}", o.pp) : "",
                    o.tp > 0 ? fmt::format(", --tp {}", o.tp) : "", fmt::join(least, " or "),
                    fmt::join(near, ", ")));
  }
  if (o.micro_batch_size == 0 || sizes.contains(o.micro_batch_size)) return {};
  return Status::Invalid(
      fmt::format("--micro-batch-size: {} does not divide a replica's share of --global-batch-size "
                  "{} ({})",
                  o.micro_batch_size, o.batch, fmt::join(sizes, ", ")));
}

}  // namespace pp
