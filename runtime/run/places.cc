#include "runtime/run/places.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/comm/clock.h"
#include "runtime/comm/phase.h"

namespace pp {
namespace {

// How long a host may take to see what another one has written into a folder that they share.
constexpr double kSharedSeconds = 5;

Status TellOfExport(const TrainOptions& options, Exchange& exchange,
                    const std::function<void(const std::string&)>& note) {
  if (!options.exports) return {};
  char sees = ModelFolder::IsBegun(options.export_path);
  if (exchange.rank() != 0) return exchange.Send(0, &sees, sizeof sees);
  bool all_see = true;
  for (int rank = 1; rank < exchange.ranks(); ++rank) {
    PP_RETURN_IF_ERROR(exchange.Receive(rank, &sees, sizeof sees));
    all_see &= sees != 0;
  }
  if (!all_see) note(fmt::format("{} will be on rank 0's host alone", options.export_path));
  return {};
}

// The number in the folder for checkpoints, which rank 0 has written before this.
uint64_t NumberOfSaves(const std::string& dir) {
  AwakeClock clock;
  double waited = 0;
  uint64_t number = 0;
  while ((number = SaveFolder::NumberIn(dir)) == 0 && (waited += clock.Lap()) < kSharedSeconds)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return number;
}

}  // namespace

Status CheckPlaces(const TrainOptions& options, Worker* worker,
                   const std::function<void(const std::string&)>& note) {
  if (options.transport == nullptr || (options.save.empty() && !options.exports)) return {};
  const auto look = [&](Exchange* exchange) {
    Readiness mine{.status = TellOfExport(options, *exchange, note), .items = {}};
    Item saves{"--save", options.save.empty() ? 0 : NumberOfSaves(options.save),
               "one that all hosts share"};
    for (const int64_t step : SavedSteps(options.save)) saves.digest = saves.digest * 31 + step;
    mine.items.push_back(saves);
    return mine;
  };
  return RunPhase({.transport = options.transport,
                   .patience = options.stall_timeout,
                   .worker = worker,
                   .work = look,
                   .on_poll = {}});
}

Result<Checkpoint> FindCheckpoint(const TrainOptions& options, Worker* worker,
                                  const ModelConfig& model, std::vector<std::string>* notes) {
  const Transport* transport = options.transport;
  Status first;  // of those that are not used
  for (const int64_t step : SavedSteps(options.save)) {
    std::optional<Checkpoint> checkpoint;
    const auto open = [&](Exchange*) {
      Result<Checkpoint> opened = OpenCheckpoint(StepFolder(options.save, step), model,
                                                 transport == nullptr ? 0 : transport->rank(),
                                                 transport == nullptr ? 1 : transport->ranks());
      if (opened.ok()) checkpoint.emplace(std::move(*opened));
      return Readiness{.status = opened.status()};
    };
    const Status status = RunPhase({.transport = options.transport,
                                    .patience = options.stall_timeout,
                                    .worker = worker,
                                    .work = open,
                                    .on_poll = {}});
    if (status.ok()) return std::move(*checkpoint);
    if (status.code() != Code::kInvalid) return status;
    if (first.ok()) first = status;
    notes->push_back("not used: " + status.message());
  }
  if (!first.ok()) return first;
  return Status::Invalid(options.save + ": has no checkpoint (one that --save wrote)");
}

}  // namespace pp
