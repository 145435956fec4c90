#include "schema/nccl/prove.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "schema/nccl/creation.h"
#include "schema/nccl/stalls.h"
#include "schema/play/play.h"
#include "schema/semantics/sections.h"

namespace pp::nccl {
namespace {

// One list per device: of a step, or of an evaluation, which uses the same communicators.
struct Phase {
  const char* name;  // empty: the step
  const Program* unrolled;
  Traffic traffic;
};

class Prover {
 public:
  explicit Prover(const Program& program) : program_(program) {}

  Status FindPhases(const std::vector<WaitsFor>& waits_for) {
    if (HasSections(program_)) {
      unrolled_ = Unroll(program_, kUnrolledBodies);
      PP_RETURN_IF_ERROR(AddPhase("prologue, 2 bodies, epilogue", unrolled_, waits_for));
    } else {
      PP_RETURN_IF_ERROR(AddPhase("", program_, waits_for));
    }
    if (!HasEvaluation(program_)) return {};
    evaluation_ = EvaluationOf(program_);
    std::vector<WaitsFor> evaluation_waits;
    PP_RETURN_IF_ERROR(Verify(evaluation_, Depth::kPlan, &evaluation_waits));
    return AddPhase("evaluation", evaluation_, evaluation_waits);
  }

  // The fewest communicators that are free of stalls, and so safe.
  Needs Search() const {
    Sharings sharings;
    std::vector<std::string> coarser;
    int last = 0;  // with two devices, one for all messages is one for the pair
    for (;;) {
      Sharings finer = sharings;
      for (const Phase& phase : phases_) {
        const Assignment assignment = Assign(phase.traffic, sharings);
        for (const Stall& stall :
             FindStalls(phase.traffic, MakeStreams(phase.traffic, assignment, Groups::kNone)))
          Split(phase.traffic, assignment.communicators[stall.communicator], &finer);
      }
      if (finer == sharings) break;
      const Assignment assignment = Assign(phases_[0].traffic, sharings);
      if (std::exchange(last, assignment.Messages()) != assignment.Messages())
        coarser.push_back(ToText(assignment) + ": " + Check(sharings, Groups::kNone).message());
      sharings = std::move(finer);
    }
    Needs needs = NeedsOf(sharings, Groups::kNone);
    needs.coarser = std::move(coarser);
    return needs;
  }

  Needs NeedsOf(const Sharings& sharings, Groups groups) const {
    Needs needs{.flows = phases_[0].traffic.flows,
                .assignment = Assign(phases_[0].traffic, sharings),
                .sharings = sharings};
    for (const Phase& phase : phases_)
      needs.kernels = std::max(needs.kernels, StreamsOf(phase, sharings, groups).MostOnADevice());
    return needs;
  }

  // Streams alone: a deadlock, or a stall.
  Status Check(const Sharings& sharings, Groups groups) const {
    for (const Phase& phase : phases_) {
      const Streams streams = StreamsOf(phase, sharings, groups);
      const std::vector<Stall> stalls = FindStalls(phase.traffic, streams);
      if (stalls.empty()) continue;
      PP_RETURN_IF_ERROR(In(phase, Play(phase, streams)));
      return In(phase, Status::Invalid(fmt::format(
                           "stall: {} may wait behind {} with its data and its partner ready",
                           NameOf(*phase.unrolled, phase.traffic.ends[stalls[0].waits]),
                           NameOf(*phase.unrolled, phase.traffic.ends[stalls[0].behind]))));
    }
    return {};
  }

  // What would work instead of `sharings` without groups.
  std::string Remedy(const Sharings& sharings) const {
    std::string remedy = ToText(Search().assignment) + ": safe and free of stalls";
    const bool safe = std::all_of(phases_.begin(), phases_.end(), [&](const Phase& phase) {
      return Play(phase, StreamsOf(phase, sharings, Groups::kAdjacent)).ok();
    });
    if (!safe) return remedy;
    const bool stalls = !Check(sharings, Groups::kAdjacent).ok();
    return remedy + fmt::format("; in groups of adjacent messages: safe{}",
                                stalls ? ", but they stall" : " and free of stalls");
  }

  Status CheckCreationOf(const Sharings& sharings) const {
    for (const Phase& phase : phases_)
      PP_RETURN_IF_ERROR(In(
          phase, CheckCreation(*phase.unrolled, phase.traffic, Assign(phase.traffic, sharings))));
    return {};
  }

  // With fewer concurrent kernels than streams, safety depends on luck.
  Status CheckKernels(const Sharings& sharings, const Terms& terms) const {
    for (const Phase& phase : phases_) {
      const Streams streams = StreamsOf(phase, sharings, terms.groups);
      const int most = streams.MostOnADevice();
      if (most <= terms.kernels) continue;
      const std::string what =
          fmt::format("{} of {} kernels at once on a device", terms.kernels, most);
      PP_RETURN_IF_ERROR(In(phase, Play(phase, streams, terms.kernels).In(what)));
      return In(phase,
                Status::Invalid(what + ": not proved safe, as their order is left to chance"));
    }
    return {};
  }

 private:
  Status AddPhase(const char* name, const Program& unrolled,
                  const std::vector<WaitsFor>& waits_for) {
    auto traffic = play::FindTraffic(unrolled, waits_for);
    if (!traffic.ok()) return traffic.status();
    phases_.push_back({name, &unrolled, std::move(*traffic)});
    return {};
  }

  // Without times: is the end reached?
  static Status Play(const Phase& phase, const Streams& streams, int kernels = play::kNoLimit) {
    return play::Play(*phase.unrolled, phase.traffic, streams, {.kernels = kernels}, nullptr);
  }

  // A communicator that stalls is replaced by the next finer ones.
  static void Split(const Traffic& traffic, const Communicator& one, Sharings* sharings) {
    if (one.sharing == Sharing::kAll) {
      sharings->most = Sharing::kPair;
      return;
    }
    const auto next = static_cast<Sharing>(static_cast<int>(one.sharing) + 1);
    for (const int32_t f : one.flows) {
      const Flow& flow = traffic.flows[f];
      sharings->finer[{flow.members[0], flow.members[1]}] = next;
    }
  }

  static Streams StreamsOf(const Phase& phase, const Sharings& sharings, Groups groups) {
    return MakeStreams(phase.traffic, Assign(phase.traffic, sharings), groups);
  }
  static Status In(const Phase& phase, const Status& status) {
    return *phase.name == '\0' ? status : status.In(phase.name);
  }

  const Program& program_;
  Program unrolled_, evaluation_;
  std::vector<Phase> phases_;
};

}  // namespace

Result<Needs> Prove(const Program& program, const std::vector<WaitsFor>& waits_for,
                    const Terms& terms) {
  Prover prover(program);
  PP_RETURN_IF_ERROR(prover.FindPhases(waits_for));
  const Needs needs =
      terms.sharing ? prover.NeedsOf({.most = *terms.sharing}, terms.groups) : prover.Search();
  const std::string chosen = ToText(needs.assignment);
  if (terms.sharing)
    if (const Status status = prover.Check(needs.sharings, terms.groups); !status.ok())
      return Status::Invalid(
          fmt::format("{}: {} ({})", chosen, status.message(), prover.Remedy(needs.sharings)));
  if (terms.creation == Creation::kFirstUse)
    if (const Status status = prover.CheckCreationOf(needs.sharings); !status.ok())
      return Status::Invalid(fmt::format("{}: {} (make them before the first step, in one order)",
                                         chosen, status.message()));
  if (const Status status = prover.CheckKernels(needs.sharings, terms); !status.ok())
    return Status::Invalid(
        fmt::format("{}: {} (at least {} at once)", chosen, status.message(), needs.kernels));
  return needs;
}

}  // namespace pp::nccl
