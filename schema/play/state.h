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
    int32_t next = 0;                       // the compute lane has passed all before
    int32_t first_stream = 0, streams = 0;  // those of the device
    int kernels = 0;                        // that occupy it
    bool awake = false;
    double time = 0;  // of the compute lane
  };
  // What a stream does at once.
  struct Item {
    int32_t begin = 0;            // in `operations`: its first; the next item's is behind its last
    int32_t needs = End::kNever;  // the last `after` of its operations
  };
  // A stream's position.
  struct Queue {
    int32_t device;
    int32_t first, item, last;    // in `items`: its first one, the next one, and behind its last
    int32_t needs = End::kNever;  // of the next item; End::kNever if there is none
    int32_t open = 0;             // operations of the item that are not over; 0: not started
    double free = 0;              // when the last item was over
  };
  struct Operation {
    int32_t end, transfer;
  };
  // A transfer's position.
  struct Meeting {
    int32_t first_end, ends;
    int32_t started = 0;  // its ends that have
  };

  // What one step of a play touches lies together: a play of many devices goes through all of them
  // with each micro-batch, and only so much fits a cache.
  const Traffic& traffic;
  std::vector<Place> places;          // by device
  std::vector<Queue> queues;          // by stream
  std::vector<Item> items;            // stream by stream, and an end
  std::vector<Operation> operations;  // item by item
  std::vector<int32_t> stream_of;     // by end
  std::vector<Meeting> meetings;      // by transfer

  State(const Traffic& t, const Streams& s)
      : traffic(t), places(t.joins.size()), stream_of(t.ends.size()) {
    queues.reserve(s.all.size());
    operations.reserve(t.ends.size());
    items.reserve(t.ends.size() + 1);
    for (size_t stream = 0; stream < s.all.size(); ++stream) {
      const auto first = static_cast<int32_t>(items.size());
      for (size_t item = 0; item < s.all[stream].Items(); ++item) {
        items.push_back({static_cast<int32_t>(operations.size()), -1});
        for (const int32_t e : s.all[stream].Item(item)) {
          operations.push_back({e, t.ends[e].transfer});
          stream_of[e] = static_cast<int32_t>(stream);
          items.back().needs = std::max(items.back().needs, t.ends[e].after);
        }
      }
      Place& place = places[s.all[stream].device];
      if (place.streams++ == 0) place.first_stream = static_cast<int32_t>(stream);
      queues.push_back({s.all[stream].device, first, first, static_cast<int32_t>(items.size())});
    }
    items.push_back({static_cast<int32_t>(operations.size())});
    for (size_t stream = 0; stream < queues.size(); ++stream)
      LookAhead(static_cast<int32_t>(stream));
    meetings.reserve(t.transfers.size());
    for (const Transfer& transfer : t.transfers)
      meetings.push_back({transfer.first_end, transfer.ends});
  }

  // Says what the stream's next item needs.
  void LookAhead(int32_t stream) {
    Queue& queue = queues[stream];
    queue.needs = queue.item == queue.last ? End::kNever : items[queue.item].needs;
    // A play of many devices would wait for memory at each new cache line.
    constexpr int kAhead = 8;
    __builtin_prefetch(items.data() + queue.item + kAhead);
    __builtin_prefetch(operations.data() + items[queue.item].begin + kAhead);
    if (queue.item != queue.last)
      __builtin_prefetch(meetings.data() + operations[items[queue.item].begin].transfer + kAhead);
  }
  bool AtEnd(int device) const {
    return places[device].next == static_cast<int32_t>(traffic.joins[device].size());
  }
  bool IsEmpty(int32_t stream) const { return queues[stream].item == queues[stream].last; }
  bool IsOver() const {
    for (size_t d = 0; d < places.size(); ++d)
      if (!AtEnd(static_cast<int>(d))) return false;
    for (size_t s = 0; s < queues.size(); ++s)
      if (!IsEmpty(static_cast<int32_t>(s))) return false;
    return true;
  }
  bool Passed(const End& end) const { return places[end.device].next > end.after; }
  bool HasMet(const End& end) const {
    return meetings[end.transfer].started == meetings[end.transfer].ends;
  }
  std::span<const Operation> ItemOf(int32_t stream) const {
    const Item* item = &items[queues[stream].item];
    return {operations.data() + item[0].begin, operations.data() + item[1].begin};
  }
};

}  // namespace pp::play
