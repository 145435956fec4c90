#include "compiler/tune/replay.h"

#include <algorithm>
#include <utility>

namespace pp {

Result<Replay> Replay::Make(const Program& plan, const std::vector<WaitsFor>& waits_for) {
  auto traffic = play::FindTraffic(plan, waits_for);
  PP_RETURN_IF_ERROR(traffic.status());
  Replay replay(plan);
  replay.traffic_ = std::move(*traffic);
  replay.streams_ = play::MakeStreams(replay.traffic_, play::OrderedChannels(replay.traffic_),
                                      play::Groups::kNone);
  return replay;
}

Result<double> Replay::Makespan(const CostModel& costs) const {
  const Durations durations(costs, *plan_);
  play::Played played;
  PP_RETURN_IF_ERROR(play::Play(*plan_, traffic_, streams_, {.durations = &durations}, &played));
  double makespan = 0;
  for (const std::vector<double>& list : played.over)
    for (const double over : list) makespan = std::max(makespan, over);
  return makespan;
}

}  // namespace pp
