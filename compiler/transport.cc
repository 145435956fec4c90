#include "compiler/transport.h"

#include <algorithm>
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

}  // namespace

Result<OnTransport> OnTransport::Make(TransportKind transport, const Program& program,
                                      const std::vector<WaitsFor>& waits_for) {
  OnTransport on;
  on.transport_ = transport;
  if (transport != TransportKind::kNccl) return on;
  auto needs = nccl::Prove(program, waits_for, {});
  if (!needs.ok()) return needs.status();
  on.sharings_ = std::move(needs->sharings);
  return on;
}

Result<Execution> OnTransport::Execute(const Program& paper, const std::vector<WaitsFor>& waits_for,
                                       const CostModel& costs) const {
  auto traffic = play::FindTraffic(paper, waits_for);
  if (!traffic.ok()) return traffic.status();
  if (transport_ == TransportKind::kRendezvous) HoldSenders(&*traffic);
  play::Streams streams =
      transport_ == TransportKind::kNccl
          ? nccl::MakeStreams(*traffic, nccl::Assign(*traffic, sharings_), play::Groups::kNone)
          : play::MakeStreams(*traffic, play::OrderedChannels(*traffic), play::Groups::kNone);
  Execution execution;
  PP_RETURN_IF_ERROR(
      pp::Execute(paper, std::move(*traffic), std::move(streams), costs, &execution));
  return execution;
}

}  // namespace pp
