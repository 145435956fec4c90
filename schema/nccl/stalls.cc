#include "schema/nccl/stalls.h"

#include <algorithm>
#include <map>
#include <optional>

namespace pp::nccl {
namespace {

class Stalls {
 public:
  explicit Stalls(const Traffic& traffic) : traffic_(traffic), over_(traffic.joins.size()) {
    for (const auto& joins : traffic.joins) budget_ += kTimes * static_cast<int64_t>(joins.size());
  }

  // Whether `behind` comes later anyway. If that is too expensive to decide, or follows only from
  // the order of other devices' collectives, the answer is no.
  bool ComesLater(int32_t before, int32_t behind) {
    const End &first = traffic_.ends[before], &second = traffic_.ends[behind];
    const Flow &flow = traffic_.FlowOf(first), &other = traffic_.FlowOf(second);
    const bool one_lane = &flow == &other || (flow.IsCollective() && other.IsCollective());
    if (one_lane && first.index < second.index) return true;  // the plan's own order
    const auto a = EndsWith(before), b = EndsWith(behind);
    bool each = true;  // of a's ends is on a device of b's and needs no more than that one
    for (const End& mine : a) {
      const auto same = std::find_if(b.begin(), b.end(),
                                     [&](const End& end) { return end.device == mine.device; });
      if (same != b.end() && mine.joined <= same->after) return true;
      each = each && (mine.after < 0 || (same != b.end() && mine.after <= same->after));
    }
    return (each && !flow.IsCollective()) || ComesLaterByOthers(a, b);
  }

 private:
  // The budget of reachability queries: this many instructions for each one of the lists. Of ours,
  // those of up to 128 devices have the same answer with a thousand times as many.
  static constexpr int64_t kTimes = 1024;

  std::span<const End> EndsWith(int32_t end) const {
    return traffic_.EndsOf(traffic_.transfers[traffic_.ends[end].transfer]);
  }

  // Collects all that must be over when b starts, backwards from b until a's needs are among it; or
  // a WAIT for a, if that is a collective: it may have to wait for those before it on any of its
  // devices, too.
  bool ComesLaterByOthers(std::span<const End> a, std::span<const End> b) {
    std::fill(over_.begin(), over_.end(), Lane{});
    left_.clear();
    for (const End& end : b) Require(end);
    const auto needed = [&](const End& end) { return over_[end.device].up_to >= end.after; };
    const auto joined = [&](const End& end) { return over_[end.device].up_to >= end.joined; };
    const bool collective = traffic_.FlowOf(a[0]).IsCollective();
    const auto found = [&] {
      return collective ? std::any_of(a.begin(), a.end(), joined)
                        : std::all_of(a.begin(), a.end(), needed);
    };
    while (!left_.empty() && budget_ > 0) {
      if (found()) return true;
      const int32_t device = left_.back();
      left_.pop_back();
      Lane& lane = over_[device];
      const auto& joins = traffic_.joins[device];
      budget_ -= lane.up_to - lane.seen;
      for (; lane.seen < lane.up_to; ++lane.seen) {
        const int32_t joined = joins[lane.seen + 1];
        if (joined < 0) continue;
        for (const End& end : EndsWith(joined)) Require(end);
      }
    }
    return found();
  }

  void Require(const End& end) {
    Lane& lane = over_[end.device];
    if (lane.up_to >= end.after) return;
    if (lane.up_to == lane.seen) left_.push_back(end.device);
    lane.up_to = end.after;
  }

  struct Lane {
    int32_t up_to = -1;  // the instruction up to which all must be over
    int32_t seen = -1;   // and what that asks of other devices is found
  };

  const Traffic& traffic_;
  std::vector<Lane> over_;     // by device
  std::vector<int32_t> left_;  // devices with seen < up_to
  int64_t budget_ = 0;
};

// The first one of a stream.
std::optional<Stall> FindStall(Stalls& stalls, const Stream& stream) {
  for (size_t i = 0; i < stream.Items(); ++i) {
    const auto item = stream.Item(i);
    if (i > 0 && !stalls.ComesLater(stream.Item(i - 1).back(), item.front()))
      return Stall{stream.carrier, item.front(), stream.Item(i - 1).back()};
    // Those of a group wait for one another; "comes later" is transitive, so a cycle suffices.
    for (size_t k = 0; item.size() > 1 && k < item.size(); ++k) {
      const int32_t other = item[(k + 1) % item.size()];
      if (!stalls.ComesLater(item[k], other)) return Stall{stream.carrier, other, item[k]};
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<Stall> FindStalls(const Traffic& traffic, const Streams& streams) {
  Stalls stalls(traffic);
  std::map<int32_t, Stall> found;  // by carrier
  for (const Stream& stream : streams.all)
    if (!found.contains(stream.carrier))
      if (const auto stall = FindStall(stalls, stream)) found.emplace(stream.carrier, *stall);
  std::vector<Stall> all;
  for (const auto& [carrier, stall] : found) all.push_back(stall);
  return all;
}

}  // namespace pp::nccl
