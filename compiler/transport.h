// A program played as a transport would have it, with its time.
//
//   async       as the plan says: messages and reductions in the background, each channel in order
//   rendezvous  a SEND holds its device until the message has arrived, as MPI_Ssend does
//   nccl        the streams of the communicators that the plan needs (schema/nccl/prove.h)
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "schema/base/status.h"
#include "schema/nccl/communicators.h"
#include "schema/play/execute.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"
#include "schema/semantics/walk.h"

namespace pp {

enum class TransportKind : uint8_t { kAsync, kRendezvous, kNccl };
inline constexpr std::string_view kTransports[] = {"async", "rendezvous", "nccl"};

// What carries a plan's messages and reductions.
struct NetworkModel {
  TransportKind transport = TransportKind::kAsync;
  // So many consecutive devices (a node) share one link out and one in: a message to another node
  // occupies the sender's link out and the receiver's link in for its time, and a reduction over
  // several nodes, or over replicas, both links of each. First come, first served. 0: each channel
  // has a link of its own, and the reductions of a device another.
  int shared_links = 0;
};

class OnTransport {
 public:
  // REQUIRES: Verify has passed `program` with kPlan.
  // Error: NCCL's communicators cannot be safe.
  static Result<OnTransport> Make(const NetworkModel& network, const Program& program);

  // The program, or bodies of it (schema/sections.h). Errors as schema/play/execute.h's:
  // with rendezvous a plan may be in a deadlock.
  Result<Execution> Execute(const Program& unrolled, const std::vector<WaitsFor>& waits_for,
                            const CostModel& costs) const;

 private:
  NetworkModel network_;
  nccl::Sharings sharings_;
};

}  // namespace pp
