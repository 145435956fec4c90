#include "schema/nccl/prove.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "schema/nccl/creation.h"
#include "schema/nccl/stalls.h"
#include "schema/play/play.h"
#include "schema/proof/body_walk.h"
#include "schema/routines.h"
#include "schema/sections.h"

namespace pp::nccl {
namespace {

// A message of a step is over before any of the next one has its data: that comes from the first
// stage's new weights, and so from the gradients of all micro-batches, and those from every message
// of the step. So two steps in a row show all that can wait for one another.
constexpr int kSteps = 2;
// Where that is not so (steps that overlap, and routines that modify nothing), the middle one of
// three bodies has all that its operations can wait for, and the last one all that can be queued
// behind them: nothing waits for what is two bodies older (body_walk.h).
constexpr int kBodies = 3;

// One list per device: several bodies in a row. All routines use the same communicators.
struct Phase {
  std::string name;  // of the first body; empty: a step
  std::string all;   // of all bodies
  int bodies;
  const Program* unrolled;
  Traffic traffic;
};

class Prover {
 public:
  explicit Prover(const Program& program) : program_(program) {}

  Status FindPhases() {
    if (program_.overlaps) {
      const char* name = "prologue, 3 bodies, epilogue";
      PP_RETURN_IF_ERROR(AddPhase({name, name, kBodies}, program_));
    } else {
      PP_RETURN_IF_ERROR(AddPhase({"", "two steps in a row", kSteps}, program_));
    }
    for (size_t r = 0; r < program_.routines.size(); ++r) {
      const std::string& name = program_.routines[r].name;
      const int bodies = Evaluates(program_.routines[r]) ? kBodies : kSteps;
      PP_RETURN_IF_ERROR(
          AddPhase({name, name + " several times in a row", bodies}, RoutineOf(program_, r)));
    }
    return {};
  }

  // The fewest communicators that are free of stalls, and so safe.
  Needs Search() const {
    Sharings sharings;
    std::vector<std::string> coarser;
    int last = 0;  // with two devices, one for all messages is one for the pair
    for (;;) {
      Sharings finer = sharings;
      for (const Phase& phase : phases_) {
        const Assignment assignment = Assign(phase.traffic.flows, sharings);
        for (const Stall& stall :
             FindStalls(phase.traffic, MakeStreams(phase.traffic, {.sharings = sharings})))
          Split(assignment.communicators[stall.carrier], &finer);
      }
      if (finer == sharings) break;
      const Assignment assignment = AssignmentOf(program_, sharings);
      if (const int messages = assignment.Count(Use::kMessages);
          std::exchange(last, messages) != messages)
        coarser.push_back(ToText(assignment) + ": " + Check({.sharings = sharings}).message());
      sharings = std::move(finer);
    }
    Needs needs = NeedsOf({.sharings = sharings});
    needs.coarser = std::move(coarser);
    return needs;
  }

  Needs NeedsOf(const Layout& layout) const {
    Needs needs{.assignment = AssignmentOf(program_, layout.sharings), .sharings = layout.sharings};
    needs.most = MostUsed(needs.assignment, layout.stream_per);
    needs.peers = MostPeers(program_, needs.assignment);
    return needs;
  }

  // Streams alone: a deadlock, or a stall.
  Status Check(const Layout& layout) const {
    for (const Phase& phase : phases_) {
      const Streams streams = MakeStreams(phase.traffic, layout);
      const std::vector<Stall> stalls = FindStalls(phase.traffic, streams);
      if (stalls.empty()) continue;
      PP_RETURN_IF_ERROR(In(phase, Play(phase, streams)));
      return ToStatus(phase, stalls);
    }
    return {};
  }

  // Whether the end is reached.
  Status CheckProgress(const Layout& layout) const {
    for (const Phase& phase : phases_)
      PP_RETURN_IF_ERROR(In(phase, Play(phase, MakeStreams(phase.traffic, layout))));
    return {};
  }

  // What would work instead of this layout.
  std::string Remedy(Layout layout) const {
    const bool together = layout.stream_per == StreamPer::kDevice;
    std::string remedy = fmt::format("{}{}: safe and free of stalls", ToText(Search().assignment),
                                     together ? ", in streams of their own" : "");
    layout.groups = Groups::kAdjacent;
    if (!CheckProgress(layout).ok()) return remedy;
    return remedy + fmt::format("; in groups of adjacent messages: safe{}",
                                Check(layout).ok() ? " and free of stalls" : ", but they stall");
  }

  Status CheckCreationOf(const Sharings& sharings) const {
    for (const Phase& phase : phases_)
      PP_RETURN_IF_ERROR(In(phase, CheckCreation(*phase.unrolled, phase.traffic,
                                                 Assign(phase.traffic.flows, sharings))));
    return {};
  }

  // With fewer concurrent kernels than streams, safety depends on luck.
  Status CheckKernels(const Layout& layout, const DeviceUse& most, int kernels) const {
    if (kernels == 0 || kernels >= most.streams) return {};
    const std::string what =
        fmt::format("{} of {} kernels at once on a device", kernels, most.streams);
    for (const Phase& phase : phases_)
      PP_RETURN_IF_ERROR(
          In(phase, Play(phase, MakeStreams(phase.traffic, layout), kernels).In(what)));
    return Status::Invalid(what + ": not proved safe, as their order is left to chance");
  }

  // What would need no more hardware queues than there are.
  std::string FewerQueues(const DeviceUse& most) const {
    if (most.Queues() <= kMostQueues)
      return fmt::format("CUDA_DEVICE_MAX_CONNECTIONS from {} to {}", most.Queues(), kMostQueues);
    const Needs fewest = Search();
    if (fewest.most.Queues() <= kMostQueues)
      return fmt::format("{}: at most {}", ToText(fewest.assignment), fewest.most.Queues());
    return fmt::format("at most {} communicators on a device",
                       (kMostQueues - kOwnStreams) / (1 + kNcclStreams));
  }

 private:
  Status AddPhase(Phase phase, const Program& program) {
    const Program& unrolled = programs_.emplace_back(Unroll(program, phase.bodies));
    std::vector<WaitsFor> waits_for;
    PP_RETURN_IF_ERROR(WalkBodies(program, unrolled, phase.bodies, &waits_for).In(phase.all));
    auto traffic = play::FindTraffic(unrolled, waits_for);
    if (!traffic.ok()) return traffic.status().In(phase.all);
    phase.unrolled = &unrolled;
    phase.traffic = std::move(*traffic);
    phases_.push_back(std::move(phase));
    return {};
  }

  // Rather one within the first body than one that it takes several bodies to see.
  static Status ToStatus(const Phase& phase, const std::vector<Stall>& stalls) {
    const auto& ends = phase.traffic.ends;
    const auto is_later = [&](const Stall& stall) {
      const End& end = ends[stall.waits];
      const size_t all = phase.unrolled->lists[end.device].body.size();
      return static_cast<size_t>(end.index) >= all / phase.bodies;
    };
    auto stall = std::find_if_not(stalls.begin(), stalls.end(), is_later);
    const bool later = stall == stalls.end();
    if (later) stall = stalls.begin();
    const Status status = Status::Invalid(fmt::format(
        "stall: {} may wait behind {} with its data and its partner "
        "ready",
        NameOf(*phase.unrolled, ends[stall->waits]), NameOf(*phase.unrolled, ends[stall->behind])));
    return later ? status.In(phase.all) : In(phase, status);
  }

  // Without times: is the end reached?
  static Status Play(const Phase& phase, const Streams& streams, int kernels = play::kNoLimit) {
    return play::Play(*phase.unrolled, phase.traffic, streams, {.kernels = kernels}, nullptr);
  }

  // A communicator that stalls is replaced by the next finer ones.
  static void Split(const Communicator& one, Sharings* sharings) {
    if (one.OfMessages() == Sharing::kAll) {
      sharings->most = Sharing::kPair;
      return;
    }
    const auto next = static_cast<Sharing>(static_cast<int>(one.OfMessages()) + 1);
    for (const Flow& flow : one.flows) sharings->finer[{flow.members[0], flow.members[1]}] = next;
  }

  static Status In(const Phase& phase, const Status& status) {
    return phase.name.empty() ? status : status.In(phase.name);
  }

  const Program& program_;
  std::deque<Program> programs_;  // of phases
  std::vector<Phase> phases_;
};

}  // namespace

Result<Needs> Prove(const Program& program, const Terms& terms) {
  Prover prover(program);
  PP_RETURN_IF_ERROR(prover.FindPhases());
  Layout layout{.groups = terms.groups, .stream_per = terms.stream_per};
  if (terms.sharing) layout.sharings.most = *terms.sharing;
  const Needs needs = terms.sharing ? prover.NeedsOf(layout) : prover.Search();
  layout.sharings = needs.sharings;
  const std::string chosen =
      ToText(needs.assignment) +
      (layout.stream_per == StreamPer::kDevice ? ", in one stream of a device" : "");
  if (terms.sharing)
    if (const Status status = prover.Check(layout); !status.ok())
      return Status::Invalid(
          fmt::format("{}: {} ({})", chosen, status.message(), prover.Remedy(layout)));
  if (const Status status = prover.CheckProgress(layout); !status.ok())
    return Status::Invalid(fmt::format("{}: {}", chosen, status.message()));
  if (terms.creation == Creation::kFirstUse)
    if (const Status status = prover.CheckCreationOf(needs.sharings); !status.ok())
      return Status::Invalid(fmt::format("{}: {} (make them before the first step, in one order)",
                                         chosen, status.message()));
  if (const Status status = prover.CheckKernels(layout, needs.most, terms.kernels); !status.ok())
    return Status::Invalid(
        fmt::format("{}: {} (at least {} at once)", chosen, status.message(), needs.most.streams));
  if (const DeviceUse& most = needs.most; most.Queues() > terms.queues)
    return Status::Invalid(fmt::format(
        "{}: device {} needs {} hardware queues of {}: {} for its own streams, {} for those of {} "
        "communicator{} and {} for NCCL's ({})",
        chosen, most.device, most.Queues(), terms.queues, kOwnStreams, most.streams,
        most.communicators, most.communicators == 1 ? "" : "s", kNcclStreams * most.communicators,
        prover.FewerQueues(most)));
  return needs;
}

}  // namespace pp::nccl
