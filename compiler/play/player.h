// Plays a rule, event by event: whenever a device is free, the policy says what it does next, or
// lets it wait. It takes no list; a list may be what comes of it. Lists whose order is given are
// followed (follow.h), which is faster.
//
//   instant    all that ends now ends;  then what devices do together;  then each free one chooses
//
// A policy has
//   std::optional<double> Choose(int device, double now)   starts something that takes so long,
//                                                          or nothing: the device waits for a Wake
//   void End(int device, double now)         optional: what the device has started is over
//   void Exchange(double now,                optional: before anyone chooses; it may append to the
//                 std::vector<int>& free)    devices that are to choose
//   kSame                                    optional: times that differ by this share are the same
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace pp {

template <typename Policy>
class Player {
 public:
  // All devices are free and asleep. REQUIRES: the policy outlives it.
  Player(int devices, Policy& policy) : policy_(policy), places_(devices) {}

  // The device chooses at `time`, if it is free then.
  void Wake(double time, int device) {
    events_.push_back({time, device});
    std::push_heap(events_.begin(), events_.end());
  }
  double FreeAt(int device) const { return places_[device].free_at; }
  bool Busy(int device) const { return places_[device].busy; }

  // Until nothing is left to happen. False: Stop was called.
  bool Run() {
    std::vector<int> free;
    while (!events_.empty() && !stopped_) {
      const double now = events_.front().time;
      free.clear();
      do {
        std::pop_heap(events_.begin(), events_.end());
        const Event event = events_.back();
        events_.pop_back();
        ++events_seen_;
        End(event, free);
      } while (HasInstants() && !events_.empty() && events_.front().time <= now * (1 + Same()));
      if constexpr (requires { policy_.Exchange(now, free); }) policy_.Exchange(now, free);
      for (const int device : free)
        if (!stopped_) Choose(now, device);
    }
    return !stopped_;
  }
  void Stop() { stopped_ = true; }
  // To play again.
  void Reset() {
    places_.assign(places_.size(), {});
    events_.clear();
    stopped_ = false;
  }
  int64_t events_seen() const { return events_seen_; }  // of all plays

 private:
  struct Event {
    double time;
    int device;
    // Ties: the later devices in the pipeline choose first.
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : device < other.device;
    }
  };
  struct Place {
    double free_at = 0;
    bool busy = false;
  };

  // Without them the devices of an instant need not choose together.
  static constexpr bool HasInstants() {
    return requires(Policy & policy, std::vector<int> & free) { policy.Exchange(0.0, free); }
    || requires(Policy & policy) { policy.End(0, 0.0); };
  }
  static constexpr double Same() {
    if constexpr (requires { Policy::kSame; }) return Policy::kSame;
    return 0;
  }

  void End(const Event& event, std::vector<int>& free) {
    Place& place = places_[event.device];
    if (place.free_at > event.time) return;
    if (std::exchange(place.busy, false))
      if constexpr (requires { policy_.End(event.device, event.time); })
        policy_.End(event.device, event.time);
    free.push_back(event.device);
  }

  void Choose(double now, int device) {
    Place& place = places_[device];
    if (place.busy) return;
    const std::optional<double> takes = policy_.Choose(device, now);
    if (!takes) return;
    place = {now + *takes, true};
    Wake(place.free_at, device);
  }

  Policy& policy_;
  std::vector<Place> places_;
  std::vector<Event> events_;  // a heap
  int64_t events_seen_ = 0;
  bool stopped_ = false;
};

}  // namespace pp
