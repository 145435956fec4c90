#include "schema/play/play.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "schema/play/deadlock.h"
#include "schema/play/state.h"

namespace pp::play {
namespace {

class Player {
 public:
  Player(const Program& unrolled, const Traffic& traffic, const Streams& streams,
         const Options& options)
      : unrolled_(unrolled),
        traffic_(traffic),
        options_(options),
        state_(traffic, streams),
        occupied_(options.links ? options.links->count : 0),
        waiting_(unrolled.devices) {
    for (size_t s = 0; s < state_.queues.size(); ++s) Await(static_cast<int32_t>(s));
    if (!Timed()) return;
    over_.resize(traffic.ends.size());
    played_.starts.resize(traffic.transfers.size());
    for (const auto& joins : traffic.joins) played_.over.emplace_back(joins.size());
  }

  Status Run() {
    for (int d = 0; d < unrolled_.devices; ++d) {
      StartItems(d);
      Wake(d);
    }
    while (!awake_.empty() || OccupyLinks()) {
      if (awake_.empty()) continue;
      const int device = awake_.back();
      awake_.pop_back();
      state_.places[device].awake = false;
      if (IsLimited(device)) StartItems(device);
      if (Timed()) {
        AdvanceInTime(device);
      } else {
        Advance(device);
      }
      StartItems(device);
    }
    for (const State::Place& place : state_.places) played_.next.push_back(place.next);
    if (state_.IsOver()) return {};
    played_.cycle = FindCycle(state_);
    return Status::Invalid("deadlock: " + ToText(unrolled_, played_.cycle));
  }

  Played Result() {
    for (size_t e = 0; e < over_.size(); ++e)
      played_.over[traffic_.ends[e].device][traffic_.ends[e].index] = over_[e];
    return std::move(played_);
  }

 private:
  bool Timed() const { return options_.durations != nullptr; }

  void Wake(int device) {
    if (state_.places[device].awake) return;
    state_.places[device].awake = true;
    awake_.push_back(device);
  }

  void Advance(int device) {
    int32_t& next = state_.places[device].next;
    for (const auto& joins = traffic_.joins[device]; next < static_cast<int32_t>(joins.size());
         ++next)
      if (joins[next] >= 0 && !state_.ends[joins[next]].is_over) return;
  }

  void AdvanceInTime(int device) {
    State::Place& place = state_.places[device];
    const auto& list = unrolled_.lists[device].body;
    const auto& joins = traffic_.joins[device];
    std::vector<double>& over = played_.over[device];
    for (int32_t& next = place.next; next < static_cast<int32_t>(list.size()); ++next) {
      const Instruction& i = list[next];
      if (joins[next] >= 0) {
        if (!state_.ends[joins[next]].is_over) return;
        place.time = std::max(place.time, over_[joins[next]]);
      } else if (Info(i.op).lane == Lane::kCompute) {
        place.time +=
            i.overlap ? options_.durations->Pair(i, list[next + 1]) : (*options_.durations)(i);
        if (i.overlap) over[next++] = place.time;
      } else {
        place.time += options_.durations->Lost(i);
      }
      over[next] = place.time;
    }
  }

  void StartItems(int device) {
    if (HasMany(device)) return StartWaiting(device);
    const int32_t first = state_.places[device].first_stream;
    const int32_t end = first + state_.places[device].streams;
    for (int32_t s = first; IsLimited(device) && s < end; ++s)
      if (!state_.IsEmpty(s) && !HasPartners(s)) StartOf(s, device);
    for (int32_t s = first; s < end; ++s) StartOf(s, device);
  }

  // Of a device with many streams only those that can start are looked at; if there are few, or if
  // they have to wait for one another, all of them.
  bool HasMany(int device) const {
    constexpr int kFew = 16;
    return state_.places[device].streams > kFew && !IsLimited(device);
  }
  // The stream's next item waits for its place in the list.
  void Await(int32_t stream) {
    const State::Queue& queue = state_.queues[stream];
    if (queue.item == queue.last || !HasMany(queue.device)) return;
    waiting_[queue.device].by_need.push({queue.needs, stream});
  }
  // In the order of the streams; one that finds its next item possible behind another one comes
  // with the device's next turn.
  void StartWaiting(int device) {
    Waiting& waiting = waiting_[device];
    std::vector<int32_t> later;
    for (int32_t last = -1;;) {
      while (!waiting.by_need.empty() && waiting.by_need.top().first < state_.places[device].next) {
        waiting.possible.push(waiting.by_need.top().second);
        waiting.by_need.pop();
      }
      if (waiting.possible.empty()) break;
      const int32_t stream = waiting.possible.top();
      waiting.possible.pop();
      if (stream < last) {
        later.push_back(stream);
        continue;
      }
      last = stream;
      StartOf(stream, device);
    }
    for (const int32_t stream : later) waiting.possible.push(stream);
  }

  bool IsLimited(int device) const { return options_.kernels < state_.places[device].streams; }
  // Whether any end has started that the next item of a stream is matched by.
  bool HasPartners(int32_t stream) const {
    const auto item = state_.ItemOf(stream);
    return std::any_of(item.begin(), item.end(),
                       [&](const auto& o) { return state_.rendezvous[o.transfer].started > 0; });
  }

  void StartOf(int32_t stream, int device) {
    State::Place& place = state_.places[device];
    State::Queue& queue = state_.queues[stream];
    while (queue.open == 0 && place.next > queue.needs && place.kernels < options_.kernels) {
      const auto item = state_.ItemOf(stream);
      ++place.kernels;
      queue.open = static_cast<int32_t>(item.size());
      if (Timed()) Delay(stream, item);
      for (const State::Operation& o : item) {
        State::Rendezvous& rendezvous = state_.rendezvous[o.transfer];
        if (++rendezvous.started < rendezvous.ends) continue;
        if (options_.links) {
          ready_.push({played_.starts[o.transfer].time, o.transfer});
        } else {
          Finish(rendezvous);
        }
      }
    }
  }

  // The transfers of an item start no earlier than it does.
  void Delay(int32_t stream, std::span<const State::Operation> item) {
    const State::Queue& queue = state_.queues[stream];
    Start latest{.time = queue.free, .queued = queue.item > queue.first};
    for (const State::Operation& o : item) {
      const End& end = traffic_.ends[o.end];
      if (end.after < 0 || played_.over[end.device][end.after] < latest.time) continue;
      latest = {.time = played_.over[end.device][end.after], .end = o.end};
    }
    for (const State::Operation& o : item) {
      Start& start = played_.starts[o.transfer];
      if (start.end >= 0 && latest.time <= start.time) continue;
      start = latest;
      if (start.end < 0) start.end = o.end;
    }
  }

  // The transfer that is ready first: all that is not ready yet will be ready no earlier, since it
  // waits for one that is. False: there is none.
  bool OccupyLinks() {
    if (ready_.empty()) return false;
    const int32_t number = ready_.top().second;
    ready_.pop();
    const State::Rendezvous& rendezvous = state_.rendezvous[number];
    const std::vector<int32_t>& links = options_.links->of_flow[traffic_.transfers[number].flow];
    Start& start = played_.starts[number];
    for (const int32_t link : links)
      if (occupied_[link].until > start.time)
        start.time = occupied_[link].until, start.behind = occupied_[link].by;
    Finish(rendezvous);
    const double until =
        start.time + (*options_.durations)(At(traffic_.ends[rendezvous.first_end]));
    for (const int32_t link : links) occupied_[link] = {until, number};
    return true;
  }

  void Finish(const State::Rendezvous& rendezvous) {
    double over = 0;
    if (Timed()) {
      const End& first = traffic_.ends[rendezvous.first_end];
      over = played_.starts[first.transfer].time + (*options_.durations)(At(first));
    }
    for (int32_t e = rendezvous.first_end; e < rendezvous.first_end + rendezvous.ends; ++e) {
      const auto stream = static_cast<int32_t>(state_.ends[e].stream);
      State::Queue& queue = state_.queues[stream];
      queue.free = std::max(queue.free, over);
      if (--queue.open > 0) continue;
      for (const State::Operation& o : state_.ItemOf(stream)) {
        state_.ends[o.end].is_over = 1;
        if (Timed()) over_[o.end] = queue.free + LatencyOf(o.end);
      }
      state_.Pass(queue);
      Await(stream);
      --state_.places[queue.device].kernels;
      Wake(queue.device);
    }
  }

  // A message arrives later than it leaves its channel; a sender that waits for it in its place
  // waits for the arrival.
  double LatencyOf(int32_t e) const {
    const End& end = traffic_.ends[e];
    const Transfer& transfer = traffic_.transfers[end.transfer];
    if (traffic_.flows[transfer.flow].IsCollective()) return 0;
    const bool leaves = e == transfer.first_end && end.joined != end.index;
    return leaves ? 0 : options_.durations->Latency(At(end));
  }

  const Instruction& At(const End& end) const {
    return unrolled_.lists[end.device].body[end.index];
  }

  const Program& unrolled_;
  const Traffic& traffic_;
  const Options& options_;
  State state_;
  std::vector<double> over_;  // by end, in time: when its item is
  std::vector<int> awake_;
  struct Occupied {
    double until = 0;
    int32_t by = -1;
  };
  std::vector<Occupied> occupied_;                                        // by link
  using Ready = std::pair<double, int32_t>;                               // since when, a transfer
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;  // before its links
  // Streams of a device with many of them, that have a next item which has not started.
  struct Waiting {
    using Need = std::pair<int32_t, int32_t>;  // what the item needs, and its stream
    std::priority_queue<Need, std::vector<Need>, std::greater<>> by_need;
    std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> possible;  // streams
  };
  std::vector<Waiting> waiting_;  // by device
  Played played_;
};

}  // namespace

Status Play(const Program& unrolled, const Traffic& traffic, const Streams& streams,
            const Options& options, Played* played) {
  Player player(unrolled, traffic, streams, options);
  const Status status = player.Run();
  if (played) *played = player.Result();
  return status;
}

}  // namespace pp::play
