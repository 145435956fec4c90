#include "compiler/transport.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "schema/nccl/prove.h"

namespace pp {
namespace {

void HoldSenders(play::Traffic* traffic) {
  for (const play::Transfer& transfer : traffic->transfers) {
    if (traffic->flows[transfer.flow].IsCollective()) continue;
    play::End& sender = traffic->ends[transfer.first_end];
    sender.after = sender.index - 1;
    sender.joined = sender.index;
    traffic->joins[sender.device][sender.index] = transfer.first_end;
  }
}

// Link 2n leads out of node n, link 2n + 1 into it.
play::Links ShareLinks(const play::Traffic& traffic, const Program& unrolled, int per_node) {
  play::Links links{.count = 2 * (unrolled.devices / per_node + 1)};
  for (const play::Flow& flow : traffic.flows) {
    std::vector<int32_t>& of = links.of_flow.emplace_back();
    std::vector<int32_t> nodes;
    for (const int32_t device : flow.members) nodes.push_back(device / per_node);
    if (!flow.IsCollective()) {
      if (nodes[0] != nodes[1]) of = {2 * nodes[0], 2 * nodes[1] + 1};
      continue;
    }
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    // Replicas are on other nodes than these devices.
    if (nodes.size() == 1 && unrolled.replicas == 1) continue;
    for (const int32_t node : nodes) of.insert(of.end(), {2 * node, 2 * node + 1});
  }
  return links;
}

}  // namespace

Result<OnTransport> OnTransport::Make(const NetworkModel& network, const Program& program) {
  OnTransport on;
  on.network_ = network;
  if (network.transport != TransportKind::kNccl) return on;
  auto needs = nccl::Prove(program, {});
  if (!needs.ok()) return needs.status();
  on.sharings_ = std::move(needs->sharings);
  return on;
}

Result<Execution> OnTransport::Execute(const Program& unrolled,
                                       const std::vector<WaitsFor>& waits_for,
                                       const CostModel& costs) const {
  auto traffic = play::FindTraffic(unrolled, waits_for);
  if (!traffic.ok()) return traffic.status();
  if (network_.transport == TransportKind::kRendezvous) HoldSenders(&*traffic);
  play::Streams streams =
      network_.transport == TransportKind::kNccl
          ? nccl::MakeStreams(*traffic, {.sharings = sharings_})
          : play::MakeStreams(*traffic, play::OrderedChannels(*traffic), play::Groups::kNone);
  std::optional<play::Links> links;
  if (network_.shared_links > 0) links = ShareLinks(*traffic, unrolled, network_.shared_links);
  Execution execution;
  PP_RETURN_IF_ERROR(pp::Execute(unrolled, std::move(*traffic), std::move(streams),
                                 std::move(links), costs, &execution));
  return execution;
}

}  // namespace pp
