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
  // A stream's position.
  struct Queue {
    int32_t device;
    int32_t first, item, last;    // in `operations`: its first item, the next one, and an end
    int32_t needs = End::kNever;  // of the next item; End::kNever if there is none
    int32_t open = 0;             // operations of the item that are not over; 0: not started
    double free = 0;              // when the last item was over
  };
  struct Operation {
    int32_t end, transfer;
    // Of its item, of which all operations know: the last `after`, and where the next item begins.
    int32_t needs, next_item;
  };
  // An end's position.
  struct Progress {
    uint32_t stream : 31, is_over : 1;  // its item is
  };
  // A transfer's position.
  struct Rendezvous {
    int32_t first_end, ends;
    int32_t started = 0;  // its ends that have
  };

  // What one step of a play touches lies together: a play of many devices goes through all of them
  // with each micro-batch, and only so much fits a cache.
  const Traffic& traffic;
  std::vector<Place> places;           // by device
  std::vector<Queue> queues;           // by stream
  std::vector<Operation> operations;   // stream by stream, item by item
  std::vector<Progress> ends;          // by end
  std::vector<Rendezvous> rendezvous;  // by transfer

  State(const Traffic& t, const Streams& s)
      : traffic(t), places(t.joins.size()), ends(t.ends.size()) {
    queues.reserve(s.all.size());
    operations.reserve(t.ends.size());
    for (size_t stream = 0; stream < s.all.size(); ++stream) {
      const auto first = static_cast<int32_t>(operations.size());
      for (size_t item = 0; item < s.all[stream].Items(); ++item) {
        const auto own = s.all[stream].Item(item);
        const auto next_item = static_cast<int32_t>(operations.size() + own.size());
        int32_t needs = -1;
        for (const int32_t e : own) needs = std::max(needs, t.ends[e].after);
        for (const int32_t e : own) {
          operations.push_back({e, t.ends[e].transfer, needs, next_item});
          ends[e].stream = static_cast<uint32_t>(stream);
        }
      }
      Place& place = places[s.all[stream].device];
      if (place.streams++ == 0) place.first_stream = static_cast<int32_t>(stream);
      queues.push_back(
          {s.all[stream].device, first, first, static_cast<int32_t>(operations.size())});
    }
    rendezvous.reserve(t.transfers.size());
    for (const Transfer& transfer : t.transfers)
      rendezvous.push_back({transfer.first_end, transfer.ends});
    for (Queue& queue : queues) LookAhead(queue);
  }

  // The stream's item is over.
  void Pass(Queue& queue) {
    queue.item = operations[queue.item].next_item;
    LookAhead(queue);
  }
  // Says what the stream's next item needs.
  void LookAhead(Queue& queue) {
    queue.needs = End::kNever;
    if (queue.item == queue.last) return;
    const Operation* operation = &operations[queue.item];
    queue.needs = operation->needs;
    // A play of many devices would wait for memory at each new cache line.
    constexpr int kAhead = 8;
    __builtin_prefetch(operation + kAhead);
    __builtin_prefetch(rendezvous.data() + operation->transfer + kAhead);
    __builtin_prefetch(ends.data() + operation->end + 2 * kAhead);
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
  bool IsMatched(const End& end) const {
    return rendezvous[end.transfer].started == rendezvous[end.transfer].ends;
  }
  std::span<const Operation> ItemOf(int32_t stream) const {
    const Operation* item = &operations[queues[stream].item];
    return {item, operations.data() + item->next_item};
  }
};

}  // namespace pp::play
