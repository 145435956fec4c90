#include "schema/nccl/prove.h"

#include <fmt/format.h>

#include <algorithm>

#include "schema/nccl/creation.h"
#include "schema/nccl/play.h"
#include "schema/nccl/stalls.h"
#include "schema/sections.h"

namespace pp {
namespace {

// One list a device: of a step, or of an evaluation, which the same communicators carry.
struct Part {
  const char* name;  // empty: the step
  const Program* paper;
  Traffic traffic;
};

class Prover {
 public:
  explicit Prover(const Program& program) : program_(program) {}

  Status FindParts(const std::vector<WaitsFor>& waits_for) {
    if (HasSections(program_)) {
      unrolled_ = Unroll(program_, kPaperBodies);
      parts_.push_back(
          {"prologue, 2 bodies, epilogue", &unrolled_, FindTraffic(unrolled_, waits_for)});
    } else {
      parts_.push_back({"", &program_, FindTraffic(program_, waits_for)});
    }
    if (!HasEvaluation(program_)) return {};
    evaluation_ = EvaluationOf(program_);
    std::vector<WaitsFor> evaluation_waits;
    PP_RETURN_IF_ERROR(Verify(evaluation_, Depth::kPlan, &evaluation_waits));
    parts_.push_back({"evaluation", &evaluation_, FindTraffic(evaluation_, evaluation_waits)});
    return {};
  }

  // The coarsest assignment that is free of stalls, and so safe.
  NcclNeeds Search() const {
    NcclNeeds needs;
    for (const CommunicatorsInfo& info : AllCommunicators()) {
      const Assignment assignment = Assign(parts_[0].traffic, info.communicators);
      if (!needs.coarser.empty() && assignment.messages == needs.messages) continue;  // as before
      needs.communicators = info.communicators;
      needs.messages = assignment.messages;
      needs.collectives = assignment.collectives;
      const Status status = Check(info.communicators, Groups::kNone);
      if (status.ok()) break;
      needs.coarser.push_back(
          fmt::format("{}, {}: {}", needs.messages, info.meaning, status.message()));
    }
    needs.kernels = Kernels(needs.communicators);
    return needs;
  }

  NcclNeeds Wished(Communicators communicators) const {
    const Assignment assignment = Assign(parts_[0].traffic, communicators);
    return {.communicators = communicators,
            .messages = assignment.messages,
            .collectives = assignment.collectives,
            .kernels = Kernels(communicators)};
  }

  // Streams alone: a deadlock, or a stall.
  Status Check(Communicators communicators, Groups groups) const {
    for (const Part& part : parts_) {
      const Streams streams = StreamsOf(part, communicators, groups);
      const auto stall = FindStall(part.traffic, streams);
      if (!stall) continue;
      PP_RETURN_IF_ERROR(In(part, Play(*part.paper, part.traffic, streams)));
      return In(part, Status::Invalid(fmt::format(
                          "stall: {} may wait behind {} with its data and its partner ready",
                          NameOf(*part.paper, part.traffic.ends[stall->waits]),
                          NameOf(*part.paper, part.traffic.ends[stall->behind]))));
    }
    return {};
  }

  Status CheckCreationOf(Communicators communicators) const {
    for (const Part& part : parts_)
      PP_RETURN_IF_ERROR(
          In(part, CheckCreation(*part.paper, part.traffic, Assign(part.traffic, communicators))));
    return {};
  }

  // Fewer kernels at once than streams are safe on no more than luck.
  Status CheckKernels(Communicators communicators, Groups groups, int kernels) const {
    for (const Part& part : parts_) {
      const Streams streams = StreamsOf(part, communicators, groups);
      const int most = streams.MostOnADevice();
      if (most <= kernels) continue;
      const std::string what = fmt::format("{} of {} kernels at once on a device", kernels, most);
      PP_RETURN_IF_ERROR(In(part, Play(*part.paper, part.traffic, streams, kernels).In(what)));
      return In(part,
                Status::Invalid(what + ": not proved safe, as their order is left to chance"));
    }
    return {};
  }

 private:
  static Streams StreamsOf(const Part& part, Communicators communicators, Groups groups) {
    return MakeStreams(part.traffic, Assign(part.traffic, communicators), groups);
  }
  int Kernels(Communicators communicators) const {
    int most = 0;
    for (const Part& part : parts_)
      most = std::max(most, StreamsOf(part, communicators, Groups::kNone).MostOnADevice());
    return most;
  }
  static Status In(const Part& part, const Status& status) {
    return *part.name == '\0' ? status : status.In(part.name);
  }

  const Program& program_;
  Program unrolled_, evaluation_;
  std::vector<Part> parts_;
};

std::string Are(const NcclNeeds& needs) {
  return fmt::format("{}, {}", needs.messages, Info(needs.communicators).meaning);
}

// The status of a wish, with what would be right.
Status Refuse(const Prover& prover, Communicators wish, const Status& status) {
  const NcclNeeds needs = prover.Search();
  return Status::Invalid(fmt::format("{}: {} ({}: safe and free of stalls)", Info(wish).meaning,
                                     status.message(), Are(needs)));
}

}  // namespace

Result<NcclNeeds> ProveNccl(const Program& program, const std::vector<WaitsFor>& waits_for,
                            const NcclTerms& terms) {
  Prover prover(program);
  PP_RETURN_IF_ERROR(prover.FindParts(waits_for));
  const NcclNeeds needs =
      terms.communicators ? prover.Wished(*terms.communicators) : prover.Search();
  const Communicators chosen = needs.communicators;
  if (terms.communicators)
    if (const Status status = prover.Check(chosen, terms.groups); !status.ok())
      return Refuse(prover, chosen, status);
  if (terms.creation == Creation::kFirstUse)
    if (const Status status = prover.CheckCreationOf(chosen); !status.ok())
      return Status::Invalid(fmt::format("{}: {} (make them before the first step, in one order)",
                                         Info(chosen).meaning, status.message()));
  if (const Status status = prover.CheckKernels(chosen, terms.groups, terms.kernels); !status.ok())
    return Status::Invalid(fmt::format("{}: {} (at least {} at once)", Info(chosen).meaning,
                                       status.message(), needs.kernels));
  return needs;
}

}  // namespace pp
