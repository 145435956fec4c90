#include "schema/play/streams.h"

#include <algorithm>
#include <map>
#include <utility>

#include "schema/play/per_device.h"

namespace pp::play {

int Streams::MostOnADevice() const {
  int most = 0, here = 0;
  for (size_t s = 0; s < all.size(); ++s) {
    here = s > 0 && all[s].device == all[s - 1].device ? here + 1 : 1;
    most = std::max(most, here);
  }
  return most;
}

Streams MakeStreams(const Traffic& traffic, std::span<const int32_t> carrier_of, Groups groups) {
  Streams streams;
  const int32_t carriers =
      carrier_of.empty() ? 0 : 1 + *std::max_element(carrier_of.begin(), carrier_of.end());
  PerDevice stream_of(carriers);  // carrier -> its place among the device's streams
  for (size_t d = 0; d < traffic.started_by.size(); ++d) {
    const size_t first = streams.all.size();
    std::vector<int32_t> run_of;       // stream of this device -> the run that its last end is in
    int32_t run = 0, last_index = -1;  // a run: messages without other instructions between them
    for (const int32_t e : traffic.started_by[d]) {
      const End& end = traffic.ends[e];
      const int32_t flow = traffic.transfers[end.transfer].flow;
      const bool adjacent = groups == Groups::kAdjacent && end.index == last_index + 1 &&
                            !traffic.flows[flow].IsCollective();
      if (!adjacent) ++run;
      last_index = traffic.flows[flow].IsCollective() ? -1 : end.index;
      int32_t& at = stream_of.Of(static_cast<int>(d), carrier_of[flow]);
      if (at < 0) {
        at = static_cast<int32_t>(run_of.size());
        streams.all.push_back({static_cast<int32_t>(d), carrier_of[flow], {}, {}});
        run_of.push_back(-1);
      }
      Stream& stream = streams.all[first + at];
      if (run_of[at] != run) stream.begins.push_back(static_cast<int32_t>(stream.ends.size()));
      run_of[at] = run;
      stream.ends.push_back(e);
    }
    for (size_t s = first; s < streams.all.size(); ++s)
      streams.all[s].begins.push_back(static_cast<int32_t>(streams.all[s].ends.size()));
  }
  return streams;
}

std::vector<int32_t> OrderedChannels(const Traffic& traffic) {
  constexpr std::pair kCollectives(-1, -1);
  std::map<std::pair<int32_t, int32_t>, int32_t> number;
  std::vector<int32_t> carrier_of;
  for (const Flow& flow : traffic.flows) {
    const auto channel =
        flow.IsCollective() ? kCollectives : std::pair(flow.members[0], flow.members[1]);
    carrier_of.push_back(
        number.try_emplace(channel, static_cast<int32_t>(number.size())).first->second);
  }
  return carrier_of;
}

}  // namespace pp::play
