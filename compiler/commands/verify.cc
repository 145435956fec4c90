// pipec verify: is a plan safe on any transport, and what does it need with NCCL?
#include <fmt/format.h>

#include "compiler/command.h"
#include "schema/nccl/prove.h"

namespace pp {
namespace {

// An option for NCCL; empty if not given.
struct Wish {
  const char* option;
  const std::string& text;
};

Status ReadTerms(const Arguments& a, nccl::Terms* terms) {
  if (!a.transport.empty())
    PP_RETURN_IF_ERROR(OneOf("--transport", a.transport, {"rendezvous", "nccl"}));
  for (const Wish& wish : {Wish{"--communicators", a.communicators}, Wish{"--groups", a.groups},
                           Wish{"--creation", a.creation}, Wish{"--kernels", a.kernels}})
    if (!wish.text.empty() && a.transport != "nccl")
      return Status::Invalid(fmt::format("{}: {} (with --transport nccl)", wish.option, wish.text));
  if (!a.communicators.empty() && a.communicators != "auto") {
    PP_RETURN_IF_ERROR(
        OneOf("--communicators", a.communicators, {"auto", "all", "pair", "direction", "kind"}));
    for (const nccl::SharingInfo& info : nccl::AllSharings())
      if (info.name == a.communicators) terms->sharing = info.sharing;
  }
  if (!a.groups.empty()) {
    PP_RETURN_IF_ERROR(OneOf("--groups", a.groups, {"none", "adjacent"}));
    if (a.groups == "adjacent") terms->groups = nccl::Groups::kAdjacent;
    if (a.groups == "adjacent" && !terms->sharing)
      return Status::Invalid("--groups: adjacent (with --communicators all, pair, ...)");
  }
  if (!a.creation.empty()) {
    PP_RETURN_IF_ERROR(OneOf("--creation", a.creation, {"before", "first-use"}));
    if (a.creation == "first-use") terms->creation = nccl::Creation::kFirstUse;
  }
  return ParseNumber("--kernels", a.kernels, 1, &terms->kernels);
}

Status VerifyNccl(const Arguments& a, const std::string& path, const VerifiedPlan& plan,
                  const nccl::Terms& terms) {
  a.progress->Doing("playing NCCL's streams of " + path);
  const auto needs = nccl::Prove(plan.program, plan.waits_for, terms);
  if (!needs.ok()) return needs.status().In(path);
  const int tp = plan.program.job ? plan.program.job->tp : 1;
  const int64_t copies = int64_t{plan.program.replicas} * tp;
  std::string text = fmt::format(
      "{}: safe with NCCL: {}{}; {} for collectives; at most {} kernel{} at once on a device\n",
      path, nccl::ToText(needs->assignment),
      copies == 1 ? "" : fmt::format(" (and so for each of {} replicas and peers)", copies),
      needs->assignment.Collectives(), needs->kernels, needs->kernels == 1 ? "" : "s");
  for (const std::string& coarser : needs->coarser)
    text += fmt::format("{}: not with {}\n", path, coarser);
  return PrintOut(text);
}

}  // namespace

Status VerifyCommand(const Arguments& a) {
  nccl::Terms terms;
  PP_RETURN_IF_ERROR(ReadTerms(a, &terms));
  for (const std::string& path : a.plans) {
    auto plan = LoadVerified(a, path);
    if (!plan.ok()) return plan.status();
    size_t instructions = 0;
    for (const DeviceList& list : plan->program.lists)
      instructions += list.prologue.size() + list.body.size() + list.epilogue.size();
    PP_RETURN_IF_ERROR(PrintOut(fmt::format(
        "{}: safe: {} on {} devices, {} micro-batches, {} instructions\n", path,
        plan->program.scheme, plan->program.devices, plan->program.microbatches, instructions)));
    if (a.transport == "nccl") PP_RETURN_IF_ERROR(VerifyNccl(a, path, *plan, terms));
  }
  return {};
}

}  // namespace pp
