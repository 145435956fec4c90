// How far a play has come: what the engine advances, and what an explanation of its end reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "schema/play/streams.h"

namespace pp::play {

struct State {
  // A device's position.
  struct Place {
    int32_t next = 0;  // the compute lane has passed all before
    int kernels = 0;   // that occupy the device
    bool awake = false;
    double time = 0;  // of the compute lane
  };
  // A stream's position.
  struct Queue {
    size_t item = 0;
    int32_t needs = 0;  // the last `after` of the item's operations; End::kNever if there is none
    int32_t open = 0;   // operations of the item that are not over; 0 if it has not started
    double free = 0;    // when the last item was over
  };

  const Traffic& traffic;
  const Streams& streams;
  std::vector<Place> places;       // by device
  std::vector<Queue> queues;       // by stream
  std::vector<int32_t> stream_of;  // by end
  std::vector<int32_t> started;    // by transfer: its ends that have

  State(const Traffic& t, const Streams& s)
      : traffic(t),
        streams(s),
        places(t.joins.size()),
        queues(s.all.size()),
        stream_of(t.ends.size()),
        started(t.transfers.size(), 0) {
    for (size_t stream = 0; stream < s.all.size(); ++stream) {
      for (const int32_t e : s.all[stream].ends) stream_of[e] = static_cast<int32_t>(stream);
      LookAhead(static_cast<int32_t>(stream));
    }
  }

  // Says what the stream's next item needs.
  void LookAhead(int32_t stream) {
    queues[stream].needs = IsEmpty(stream) ? End::kNever : -1;
    if (IsEmpty(stream)) return;
    for (const int32_t e : ItemOf(stream))
      queues[stream].needs = std::max(queues[stream].needs, traffic.ends[e].after);
  }
  bool AtEnd(int device) const {
    return places[device].next == static_cast<int32_t>(traffic.joins[device].size());
  }
  bool IsEmpty(int32_t stream) const { return queues[stream].item == streams.all[stream].Items(); }
  bool IsOver() const {
    for (size_t d = 0; d < places.size(); ++d)
      if (!AtEnd(static_cast<int>(d))) return false;
    for (size_t s = 0; s < queues.size(); ++s)
      if (!IsEmpty(static_cast<int32_t>(s))) return false;
    return true;
  }
  bool Passed(const End& end) const { return places[end.device].next > end.after; }
  bool HasMet(const End& end) const {
    return started[end.transfer] == traffic.transfers[end.transfer].ends;
  }
  std::span<const int32_t> ItemOf(int32_t stream) const {
    return streams.all[stream].Item(queues[stream].item);
  }
};

}  // namespace pp::play
