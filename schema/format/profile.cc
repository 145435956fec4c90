#include "schema/format/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "schema/base/json.h"
#include "schema/topology.h"

namespace pp {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1, kWarmUp = 2;
constexpr double kMost = 1e6;  // seconds of an instruction

std::optional<Measured> KindOf(Op op) {
  switch (op) {
    case Op::kForward:
    case Op::kForwardDrop:
      return Measured::kF;
    case Op::kRecompute:
      return Measured::kR;
    case Op::kBackward:
      return Measured::kB;
    case Op::kBackwardInput:
      return Measured::kBi;
    case Op::kBackwardWeight:
      return Measured::kBw;
    case Op::kStep:
      return Measured::kStep;
    case Op::kReduceGrad:
    case Op::kScatterGrad:
    case Op::kGatherWeights:
      return Measured::kReduce;
    case Op::kSendAct:
      return Measured::kComm;
    default:
      return std::nullopt;
  }
}

Result<Job> ReadJob(const Json& json) {
  Job job;
  if (!json.contains("model") || !json["model"].is_object())
    return Status::Invalid("model is missing (an object)");
  auto model = ParseModelConfig(json["model"].dump(), "model");
  if (!model.ok()) return model.status();
  job.model = *model;
  if (!json.contains("job") || !json["job"].is_object())
    return Status::Invalid("job is missing (an object)");
  Status status;
  ForEachRow(kJobAttributes, [&](const auto& row) {
    const auto at = json["job"].find(row.text);
    if (!status.ok() || at == json["job"].end()) return;
    status = at->is_string() ? Read(row, at->template get<std::string>(), &(job.*row.member))
                             : Status::Invalid("is no text");
    status = status.In(fmt::format("job: {}", row.text));
  });
  PP_RETURN_IF_ERROR(status);
  PP_RETURN_IF_ERROR(CheckSplit(job.layers_per_stage, job.model.layers, job.stages()).In("job"));
  PP_RETURN_IF_ERROR(CheckJob(job).In("job"));
  if (job.shapes.given()) return Status::Invalid("job: shapes (a profile for each)");
  return job;
}

Status ReadWhole(const Json& json, const char* key, int* number) {
  const auto at = json.find(key);
  if (at == json.end() || !at->is_number_unsigned() || at->get<uint64_t>() > 1 << 24)
    return Status::Invalid(fmt::format("{} is missing or no whole number", key));
  *number = at->get<int>();
  return {};
}

Status ReadSeconds(const Json& json, size_t stages, std::string_view key,
                   std::vector<double>* seconds) {
  seconds->assign(stages, -1);
  const auto at = json.find(key);
  if (at == json.end()) return {};
  if (!at->is_array() || at->size() != stages)
    return Status::Invalid(
        fmt::format("seconds: {} has not {} numbers, one for each stage", key, stages));
  for (size_t s = 0; s < stages; ++s) {
    const Json& value = (*at)[s];
    if (value.is_null()) continue;
    if (!value.is_number() || !(value.get<double>() >= 0) || value.get<double>() > kMost)
      return Status::Invalid(
          fmt::format("seconds: {} of stage {} is {} (null, or a number from 0 "
                      "to {:g})",
                      key, s, Shown(value.dump()), kMost));
    (*seconds)[s] = value.get<double>();
  }
  return {};
}

// Messages, reductions and steps that were not measured are assumed, but the work of a stage is
// what all else is scaled by.
Status CheckMeasured(const Profile& profile) {
  const auto has = [&](Measured kind) {
    const std::vector<double>& row = profile.of(kind);
    return std::any_of(row.begin(), row.end(), [](double seconds) { return seconds > 0; });
  };
  if (!has(Measured::kF))
    return Status::Invalid("f is missing (a forward of some stage, above 0: piperun --profile)");
  if (!has(Measured::kB) && !(has(Measured::kBi) && has(Measured::kBw)))
    return Status::Invalid(
        "b is missing (a backward of some stage, or bi and bw, above 0: piperun --profile)");
  return {};
}

using Times = std::map<std::pair<Measured, int>, std::vector<double>>;  // by kind and stage

// What messages take beside their channel.
//
//   compute  | FW |..SEND..| FW     post: until the lane goes on
//   peer     |  WAIT          |     latency: from the SEND to the WAIT's end
void AddPosts(const Program& program, std::span<const Event> events, int32_t first, int shape,
              Times* times) {
  const Topology topology = TopologyOf(program);
  std::map<std::pair<int, int>, std::vector<const Event*>> bodies;  // by rank and step
  for (const Event& event : events) {
    if (event.step < first) continue;
    auto& body = bodies[{event.rank, event.step}];
    body.resize(ListOf(program, event).size());
    body[event.index] = &event;
  }
  // By step, replica and peer, and value.
  using Message = std::tuple<int, int, int, Kind, int, int>;
  const auto message_of = [&](const Event& event, Kind kind, const Instruction& i) {
    const Place place = topology.PlaceOf(event.rank);
    return Message(event.step, place.replica, place.index, kind, i.stage, i.micro);
  };
  std::map<Message, double> sent;
  for (const auto& [key, body] : bodies) {
    const Event* last = nullptr;
    std::vector<int> sends;  // their stages, since the last one of the compute lane
    for (const Event* event : body) {
      if (event == nullptr) continue;
      const Instruction& i = InstructionOf(program, *event);
      if (Info(i.op).lane == Lane::kSend && last != nullptr) {
        if (program.ShapeOf(i.micro) == shape) sends.push_back(i.stage);
        sent[message_of(*event, KindOfMessage(i.op), i)] = last->start + last->duration;
      }
      if (Info(i.op).lane != Lane::kCompute) continue;
      for (const int stage : sends)
        (*times)[{Measured::kPost, stage}].push_back((event->start - last->start - last->duration) /
                                                     static_cast<double>(sends.size()));
      sends.clear();
      last = event;
    }
  }
  for (const Event& event : events) {
    const Instruction& i = InstructionOf(program, event);
    if (event.step < first || i.op != Op::kWait || i.sent || program.ShapeOf(i.micro) != shape)
      continue;
    const auto found = sent.find(message_of(event, i.value, i));
    if (found != sent.end() && event.start < found->second)
      (*times)[{Measured::kLatency, i.stage}].push_back(event.start + event.duration -
                                                        found->second);
  }
}

}  // namespace

double Quantile(std::vector<double> values, double at) {
  const auto nth =
      values.begin() + static_cast<std::ptrdiff_t>(at * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

Profile ProfileOf(const Program& program, std::span<const Event> events, int shape) {
  Profile profile{.job = program.job->OfShape(shape)};
  int32_t last = 0;
  for (const Event& event : events) last = std::max(last, event.step);
  const int32_t first = last > kWarmUp ? kWarmUp + 1 : 1;
  profile.steps = std::max(0, last - first + 1);
  Times times;
  // A stage's buckets together: by stage, rank and step.
  std::map<std::tuple<int, int, int>, double> reductions;
  for (const Event& event : events) {
    if (event.step < first) continue;
    const Instruction& i = InstructionOf(program, event);
    const auto kind = KindOf(i.op);
    if (!kind || i.stage < 0 || (i.micro >= 0 && program.ShapeOf(i.micro) != shape)) continue;
    if (*kind == Measured::kReduce) {
      reductions[{i.stage, event.rank, event.step}] += event.duration;
    } else {
      times[{*kind, i.stage}].push_back(event.duration);
    }
  }
  for (const auto& [key, seconds] : reductions)
    times[{Measured::kReduce, std::get<0>(key)}].push_back(seconds);
  if (program.p2p == P2p::kAsync) AddPosts(program, events, first, shape, &times);
  for (auto& row : profile.seconds) row.assign(program.stages, -1);
  for (auto& [key, values] : times) {
    const bool waits = key.first == Measured::kReduce || key.first == Measured::kComm;
    profile.of(key.first)[key.second] =
        std::max(0.0, Quantile(std::move(values), waits ? 0.1 : 0.5));
  }
  // A message is on its channel before it is late.
  for (int s = 0; s < program.stages; ++s)
    if (double& latency = profile.of(Measured::kLatency)[s]; latency >= 0)
      latency = std::max(0.0, latency - std::max(0.0, profile.of(Measured::kComm)[s]));
  return profile;
}

namespace {

Json JsonOf(const Profile& profile) {
  Json job, seconds;
  ForEachRow(kJobAttributes, [&](const auto& row) {
    const auto& value = profile.job.*row.member;
    if (value == Job{}.*row.member) return;
    std::string text = TextOf(row, value);
    std::replace(text.begin(), text.end(), ' ', ',');
    job[std::string(row.text)] = text.empty() ? "true" : text;
  });
  for (size_t k = 0; k < kMeasuredKeys.size(); ++k) {
    const std::vector<double>& row = profile.seconds[k];
    if (std::all_of(row.begin(), row.end(), [](double x) { return x < 0; })) continue;
    Json& values = seconds[std::string(kMeasuredKeys[k])];
    for (const double x : row) values.push_back(x < 0 ? Json() : Json(x));
  }
  return Json{{"profile", kVersion},
              {"host", profile.host},
              {"threads", profile.threads},
              {"cores", profile.cores},
              {"steps", profile.steps},
              {"model", Json::parse(ToJson(profile.job.model))},
              {"job", job},
              {"seconds", seconds}};
}

Result<Profile> ParseProfile(const nlohmann::json* json) {
  if (!json->is_object() || !json->contains("profile"))
    return Status::Invalid("is no profile (piperun --profile writes them)");
  if ((*json)["profile"] != kVersion)
    return Status::Invalid(
        fmt::format("profile is {} (version {})", Shown((*json)["profile"].dump()), kVersion));
  Profile profile;
  auto job = ReadJob(*json);
  if (!job.ok()) return job.status();
  profile.job = std::move(*job);
  PP_RETURN_IF_ERROR(ReadWhole(*json, "threads", &profile.threads));
  PP_RETURN_IF_ERROR(ReadWhole(*json, "steps", &profile.steps));
  if (json->contains("cores")) PP_RETURN_IF_ERROR(ReadWhole(*json, "cores", &profile.cores));
  if (const auto host = json->find("host"); host != json->end() && host->is_string())
    profile.host = *host;
  const auto seconds = json->find("seconds");
  if (seconds == json->end() || !seconds->is_object())
    return Status::Invalid("seconds is missing (an object)");
  for (size_t k = 0; k < kMeasuredKeys.size(); ++k)
    PP_RETURN_IF_ERROR(ReadSeconds(*seconds, static_cast<size_t>(profile.job.stages()),
                                   kMeasuredKeys[k], &profile.seconds[k]));
  PP_RETURN_IF_ERROR(CheckMeasured(profile).In("seconds"));
  return profile;
}

}  // namespace

std::string ToJson(std::span<const Profile> profiles) {
  Json all;
  for (const Profile& profile : profiles) all.push_back(JsonOf(profile));
  return (all.size() == 1 ? all.front() : all).dump() + "\n";
}

Result<std::vector<Profile>> ParseProfiles(const std::string& text) {
  const auto json = ParseJson(text);
  if (!json.ok()) return json.status();
  std::vector<Profile> profiles;
  const auto add = [&](const nlohmann::json& one) {
    auto profile = ParseProfile(&one);
    if (profile.ok()) profiles.push_back(std::move(*profile));
    return profile.status();
  };
  if (!json->is_array() || json->empty()) PP_RETURN_IF_ERROR(add(*json));
  for (size_t i = 0; json->is_array() && i < json->size(); ++i)
    PP_RETURN_IF_ERROR(add((*json)[i]).In(fmt::format("profile {}", i)));
  return profiles;
}

}  // namespace pp
