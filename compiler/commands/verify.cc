// pipec verify: is a plan safe on any transport, and what does it need with NCCL?
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/command.h"
#include "schema/base/units.h"
#include "schema/nccl/process_groups.h"
#include "schema/nccl/prove.h"

namespace pp {
namespace {

std::string ToText(const std::string& path, const Program& program, const nccl::Needs& needs) {
  const int tp = program.job ? program.job->tp : 1;
  const int64_t copies = int64_t{program.replicas} * tp;
  const nccl::DeviceUse& most = needs.most;
  std::string text = fmt::format(
      "{}: safe with NCCL: {}{}; {} for collectives{}; at most {} kernel{} at once and {} hardware "
      "queues on a device, and some {} of NCCL's own memory\n",
      Shown(path), nccl::ToText(needs.assignment),
      copies == 1 ? "" : fmt::format(" (and so for each of {} replicas and peers)", copies),
      needs.assignment.Count(nccl::Use::kReductions),
      tp == 1 ? "" : "; 1 for the peers of each device", most.streams, most.streams == 1 ? "" : "s",
      most.Queues(), BytesText(nccl::BytesOf(needs.peers)));
  for (const std::string& coarser : needs.coarser)
    text += fmt::format("{}: not with {}\n", Shown(path), coarser);
  return text;
}

using Json = nlohmann::ordered_json;

Json ToJson(const nccl::Communicator& one, bool over_replicas) {
  constexpr std::string_view kUses[] = {"messages", "collectives", "peers"};
  Json json = {{"use", kUses[static_cast<size_t>(one.key.use)]}};
  if (one.key.use == nccl::Use::kMessages) json["for"] = nccl::Info(one.OfMessages()).name;
  json["devices"] = one.devices;
  json["replicas"] = over_replicas;
  return json;
}

Json ToJson(const Collective& collective, int communicator) {
  const Instruction& i = collective.instruction;
  Json json = {{"op", Info(i.op).text}};
  if (i.stage >= 0) json["stage"] = i.stage;
  if (i.bucket >= 0) json["bucket"] = i.bucket;
  json["devices"] = collective.members;
  json["communicator"] = communicator < 0 ? Json() : Json(communicator);
  return json;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}
// A line for each value.
std::string Lines(const std::vector<Json>& values) {
  std::string out = "[";
  for (const Json& value : values) out += (out.size() > 1 ? ",\n  " : "\n  ") + Dump(value);
  return out + "]";
}

// What schema/README.md, "Formats", says of it.
std::string ToJson(const Program& program, const nccl::Needs& needs, const nccl::Terms& terms) {
  const auto groups = nccl::ProcessGroupsOf(program, needs.sharings, terms.stream_per);
  std::vector<Json> communicators, flows, collectives, notes;
  const auto& all = groups.assignment.communicators;
  for (size_t c = 0; c < all.size(); ++c) {
    communicators.push_back(ToJson(all[c], groups.over_replicas[c]));
    for (const nccl::Flow& flow : all[c].flows)
      if (!flow.IsCollective())
        flows.push_back({{"from", flow.members[0]},
                         {"to", flow.members[1]},
                         {"kind", Info(flow.kind).text},
                         {"communicator", c}});
  }
  for (size_t k = 0; k < groups.collectives.size(); ++k)
    collectives.push_back(ToJson(groups.collectives[k], groups.of_collective[k]));
  for (const std::string& coarser : needs.coarser) notes.emplace_back("not with " + coarser);
  const nccl::DeviceUse& most = groups.most;
  if (most.Queues() > terms.queues)
    notes.emplace_back(fmt::format("device {} needs {} hardware queues of {}", most.device,
                                   most.Queues(), terms.queues));
  if (terms.kernels > 0 && most.streams > terms.kernels)
    notes.emplace_back(fmt::format("device {} needs {} kernels at once of {}", most.device,
                                   most.streams, terms.kernels));
  return fmt::format(
      R"({{"communicators":{},
 "flows":{},
 "collectives":{},
 "rounds":{},
 "streams":{},"queues":{},
 "notes":{}}})",
      Lines(communicators), Lines(flows), Lines(collectives), Dump(groups.rounds), most.streams,
      most.Queues(), Lines(notes));
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
  std::string json;
  for (const std::string& path : a.plans) {
    auto plan = LoadVerified(a, path);
    if (!plan.ok()) return plan.status();
    std::optional<nccl::Needs> needs;
    const auto prove = [&]() -> Status {
      a.progress->Doing("playing NCCL's streams of " + path);
      auto proved = nccl::Prove(plan->program, terms);
      if (!proved.ok()) return proved.status().In(path);
      needs = std::move(*proved);
      return {};
    };
    if (a.format == "json") {
      if (a.nccl) PP_RETURN_IF_ERROR(prove());
      json += fmt::format(R"({}{{"plan":{},"safe":true,"summary":{}{}}})",
                          json.empty() ? "" : ",\n", Dump(path), Dump(Summary(plan->program)),
                          needs ? ",\n\"nccl\":" + ToJson(plan->program, *needs, terms) : "");
      continue;
    }
    PP_RETURN_IF_ERROR(
        PrintOut(fmt::format("{}: safe: {}\n", Shown(path), Summary(plan->program))));
    if (!a.nccl) continue;
    PP_RETURN_IF_ERROR(prove());
    PP_RETURN_IF_ERROR(PrintOut(ToText(path, plan->program, *needs)));
  }
  if (a.format != "json") return {};
  return PrintOut(a.plans.size() == 1 ? json + "\n" : "[\n" + json + "\n]\n");
}

}  // namespace pp
