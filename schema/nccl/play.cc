#include "schema/nccl/play.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace pp::nccl {
namespace {

class Player {
 public:
  Player(const Program& paper, const Traffic& traffic, const Streams& streams, int kernels)
      : paper_(paper),
        traffic_(traffic),
        streams_(streams),
        kernels_(kernels),
        places_(paper.devices),
        queues_(streams.all.size()),
        stream_of_(traffic.ends.size()),
        started_(traffic.transfers.size(), 0),
        over_(traffic.ends.size(), 0) {
    for (size_t s = 0; s < streams.all.size(); ++s)
      for (const int32_t e : streams.all[s].ends) stream_of_[e] = static_cast<int32_t>(s);
  }

  Status Run() {
    for (int d = 0; d < paper_.devices; ++d) {
      StartItems(d);
      Wake(d);
    }
    while (!awake_.empty()) {
      const int device = awake_.back();
      awake_.pop_back();
      places_[device].awake = false;
      StartItems(device);
      Advance(device);
      StartItems(device);
    }
    for (int d = 0; d < paper_.devices; ++d)
      if (!AtEnd(d)) return Stuck(d);
    return {};
  }

 private:
  struct Place {
    int32_t next = 0;  // the compute lane has passed all before
    int kernels = 0;   // that occupy the device
    bool awake = false;
  };
  // The state of a stream.
  struct Queue {
    size_t item = 0;
    int32_t open = 0;  // operations of the item that have not met; 0 if it has not started
  };

  bool AtEnd(int device) const {
    return places_[device].next == static_cast<int32_t>(traffic_.joins[device].size());
  }
  bool Passed(const End& end) const { return places_[end.device].next > end.after; }
  bool HasMet(const End& end) const {
    return started_[end.transfer] == traffic_.transfers[end.transfer].ends;
  }
  std::span<const int32_t> ItemOf(int32_t stream) const {
    return streams_.all[stream].Item(queues_[stream].item);
  }
  bool IsEmpty(int32_t stream) const {
    return queues_[stream].item == streams_.all[stream].Items();
  }

  void Wake(int device) {
    if (places_[device].awake) return;
    places_[device].awake = true;
    awake_.push_back(device);
  }

  void Advance(int device) {
    int32_t& next = places_[device].next;
    for (const auto& joins = traffic_.joins[device]; next < static_cast<int32_t>(joins.size());
         ++next)
      if (joins[next] >= 0 && !over_[joins[next]]) return;
  }

  void StartItems(int device) {
    const auto& mine = streams_.of_device[device];
    if (kernels_ < static_cast<int>(mine.size()))
      for (const int32_t s : mine)
        if (!IsEmpty(s) && std::none_of(ItemOf(s).begin(), ItemOf(s).end(), [&](int32_t e) {
              return started_[traffic_.ends[e].transfer] > 0;
            }))
          StartItem(s);
    for (const int32_t s : mine) StartItem(s);
  }

  void StartItem(int32_t stream) {
    while (!IsEmpty(stream) && queues_[stream].open == 0) {
      const auto item = ItemOf(stream);
      Place& place = places_[streams_.all[stream].device];
      if (place.kernels == kernels_ || !std::all_of(item.begin(), item.end(), [&](int32_t e) {
            return Passed(traffic_.ends[e]);
          }))
        return;
      ++place.kernels;
      queues_[stream].open = static_cast<int32_t>(item.size());
      for (const int32_t e : item) {
        const Transfer& transfer = traffic_.transfers[traffic_.ends[e].transfer];
        if (++started_[traffic_.ends[e].transfer] == transfer.ends) Meet(transfer);
      }
    }
  }

  void Meet(const Transfer& transfer) {
    for (int32_t e = transfer.first_end; e < transfer.first_end + transfer.ends; ++e) {
      const int32_t stream = stream_of_[e];
      if (--queues_[stream].open > 0) continue;
      for (const int32_t done : ItemOf(stream)) over_[done] = 1;
      ++queues_[stream].item;
      --places_[streams_.all[stream].device].kernels;
      Wake(streams_.all[stream].device);
    }
  }

  // Why something does not proceed, and what it waits for: an end, or a compute lane (-1 - device).
  struct Reason {
    const char* text;
    int32_t next;
  };
  static int32_t LaneOf(int device) { return -1 - device; }

  Reason WhyNot(int32_t node) const {
    if (node < 0) return {"waits for", traffic_.joins[-1 - node][places_[-1 - node].next]};
    const int32_t stream = stream_of_[node];
    const auto item = ItemOf(stream);
    const bool is_next = std::find(item.begin(), item.end(), node) != item.end();
    if (queues_[stream].open == 0) {
      for (const int32_t e : item)
        if (!Passed(traffic_.ends[e])) {
          if (e == node) return {"needs what comes after", LaneOf(traffic_.ends[e].device)};
          return {is_next ? "is grouped with" : "is queued behind", e};
        }
      if (!is_next) return {"is queued behind", item.front()};
      return {"finds no room alongside", Unmet(Occupant(streams_.all[stream].device))};
    }
    if (!is_next) return {"is queued behind", Unmet(stream)};
    if (HasMet(traffic_.ends[node])) return {"is grouped with", Unmet(stream)};
    const Transfer& transfer = traffic_.transfers[traffic_.ends[node].transfer];
    for (int32_t e = transfer.first_end;; ++e)
      if (!HasStarted(e)) return {"waits to meet", e};
  }

  // REQUIRES: the end is not over.
  bool HasStarted(int32_t end) const {
    const int32_t stream = stream_of_[end];
    const auto item = ItemOf(stream);
    return queues_[stream].open > 0 && std::find(item.begin(), item.end(), end) != item.end();
  }
  // The first operation of a started item that has not met.
  int32_t Unmet(int32_t stream) const {
    const auto item = ItemOf(stream);
    return *std::find_if(item.begin(), item.end(),
                         [&](int32_t e) { return !HasMet(traffic_.ends[e]); });
  }
  int32_t Occupant(int device) const {
    const auto& mine = streams_.of_device[device];
    return *std::find_if(mine.begin(), mine.end(),
                         [&](int32_t s) { return !IsEmpty(s) && queues_[s].open > 0; });
  }

  std::string Name(int32_t node) const {
    return node < 0 ? NameOf(paper_, -1 - node, places_[-1 - node].next)
                    : NameOf(paper_, traffic_.ends[node]);
  }

  // Everything that has stopped waits for something that has stopped: the path ends in a cycle.
  Status Stuck(int device) const {
    constexpr size_t kShown = 12;
    std::vector<std::pair<int32_t, const char*>> way;  // and why it does not proceed
    std::unordered_map<int32_t, size_t> seen;
    int32_t node = LaneOf(device);
    while (seen.try_emplace(node, way.size()).second) {
      const Reason reason = WhyNot(node);
      way.emplace_back(node, reason.text);
      node = reason.next;
    }
    way.erase(way.begin(), way.begin() + static_cast<int64_t>(seen[node]));
    std::string text = "deadlock: " + Name(way[0].first);
    for (size_t i = 0; i < way.size(); ++i) {
      text += fmt::format("{} {} ", i == 0 ? "" : ", which", way[i].second);
      if (i + 1 == way.size()) {
        text += "the first";
      } else if (i + 1 == kShown) {
        return Status::Invalid(text + fmt::format("{} more", way.size() - kShown));
      } else {
        text += Name(way[i + 1].first);
      }
    }
    return Status::Invalid(text);
  }

  const Program& paper_;
  const Traffic& traffic_;
  const Streams& streams_;
  const int kernels_;
  std::vector<Place> places_;
  std::vector<Queue> queues_;
  std::vector<int32_t> stream_of_;  // end -> its stream
  std::vector<int32_t> started_;    // transfer -> its ends that have
  std::vector<uint8_t> over_;       // end -> whether its item is
  std::vector<int> awake_;
};

}  // namespace

Status Play(const Program& paper, const Traffic& traffic, const Streams& streams, int kernels) {
  return Player(paper, traffic, streams, kernels).Run();
}

}  // namespace pp::nccl
