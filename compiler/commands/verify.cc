// pipec verify: is a plan safe on any transport, and what does it need with NCCL?
#include <fmt/format.h>

#include "compiler/command.h"
#include "schema/base/units.h"
#include "schema/nccl/prove.h"

namespace pp {
namespace {

Status VerifyNccl(const Arguments& a, const std::string& path, const VerifiedPlan& plan,
                  const nccl::Terms& terms) {
  a.progress->Doing("playing NCCL's streams of " + path);
  const auto needs = nccl::Prove(plan.program, terms);
  if (!needs.ok()) return needs.status().In(path);
  const int tp = plan.program.job ? plan.program.job->tp : 1;
  const int64_t copies = int64_t{plan.program.replicas} * tp;
  const nccl::DeviceUse& most = needs->most;
  std::string text = fmt::format(
      "{}: safe with NCCL: {}{}; {} for collectives{}; at most {} kernel{} at once and {} hardware "
      "queues on a device, and some {} of NCCL's own memory\n",
      Shown(path), nccl::ToText(needs->assignment),
      copies == 1 ? "" : fmt::format(" (and so for each of {} replicas and peers)", copies),
      needs->assignment.Count(nccl::Use::kReductions),
      tp == 1 ? "" : "; 1 for the peers of each device", most.streams, most.streams == 1 ? "" : "s",
      most.Queues(), BytesText(nccl::BytesOf(needs->peers)));
  for (const std::string& coarser : needs->coarser)
    text += fmt::format("{}: not with {}\n", Shown(path), coarser);
  return PrintOut(text);
}

}  // namespace

Status VerifyCommand(const Arguments& a) {
  if (!a.nccl && !a.of_nccl.empty()) return Status::Invalid(a.of_nccl + " (with --transport nccl)");
  nccl::Terms terms = a.terms;
  for (const nccl::SharingInfo& info : nccl::AllSharings())
    if (info.name == a.communicators) terms.sharing = info.sharing;
  if (terms.groups == nccl::Groups::kAdjacent && !terms.sharing)
    return Status::Invalid("--groups: adjacent (with --communicators all, pair, ...)");
  if (terms.stream_per == nccl::StreamPer::kDevice && !terms.sharing)
    return Status::Invalid("--streams: device (with --communicators all, pair, ...)");
  for (const std::string& path : a.plans) {
    auto plan = LoadVerified(a, path);
    if (!plan.ok()) return plan.status();
    PP_RETURN_IF_ERROR(
        PrintOut(fmt::format("{}: safe: {}\n", Shown(path), Summary(plan->program))));
    if (a.nccl) PP_RETURN_IF_ERROR(VerifyNccl(a, path, *plan, terms));
  }
  return {};
}

}  // namespace pp
