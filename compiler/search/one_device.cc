#include "compiler/search/one_device.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <queue>
#include <utility>

namespace pp::search {
namespace {

// Cells of one kind that wait for their backward. Those that could run now differ in nothing.
struct Waiting {
  int64_t count = 0;
  std::vector<double> late;  // when the others can, ascending

  double First(double now) const {
    return static_cast<int64_t>(late.size()) == count ? late.front() : now;
  }
  double Take(double now) {
    const double first = First(now);
    if (static_cast<int64_t>(late.size()) == count--) late.erase(late.begin());
    return first;
  }
  void Add(double ready) {
    ++count;
    late.insert(std::upper_bound(late.begin(), late.end(), ready), ready);
  }
  void GoOn(double now) {
    late.erase(late.begin(), std::upper_bound(late.begin(), late.end(), now));
  }
  // Whether each of these can run no later than its counterpart. REQUIRES: as many of both, and
  // that it is no later here than there, where it is `others_now`.
  bool NeverLater(const Waiting& other, double others_now) const {
    for (size_t i = 0; i < late.size(); ++i) {
      const bool is_late = i < other.late.size();
      const double limit = is_late ? other.late[other.late.size() - 1 - i] : others_now;
      if (late[late.size() - 1 - i] > limit) return false;
    }
    return true;
  }
};

// What is left of a group.
struct Rest {
  int64_t forwards = 0;                  // not begun
  Waiting dropped;                       // wait for a recompute, too
  std::array<Waiting, 2> full;           // kept, recomputed
  std::array<int64_t, 2> weights = {0};  // wait for their weight half: kept, recomputed

  int64_t backwards() const { return forwards + dropped.count + full[0].count + full[1].count; }
};

// The device after some tasks.
struct State {
  double now = 0;
  double reached = 0;  // the end of what follows the backwards that are over
  double least = 0;    // a lower bound of the makespan of all that go on from here
  int begun = 0;       // tasks
  bool dominated = false;
  std::vector<Rest> rests;  // by group
};

// Best first: what is next to be taken up is a lower bound of the makespan. Of states that have
// done the same work only those are kept that may still be faster than another one.
class BestFirst {
 public:
  BestFirst(const std::vector<Group>& groups, int64_t limit, int64_t work)
      : groups_(groups), limit_(limit), work_(work) {}

  double Run() {
    State start;
    for (const Group& group : groups_) start.rests.push_back({.forwards = group.count});
    Push(std::move(start));
    double bound = 0;
    while (!open_.empty()) {
      const int at = open_.top().state;
      open_.pop();
      if (states_[at].dominated) continue;
      bound = std::max(bound, states_[at].least);
      if (IsOver(states_[at]) || work_ < 0) return bound;
      Expand(at);
    }
    return bound;
  }

 private:
  struct Next {
    double least;
    int begun, state;
    // The furthest of equally promising ones first.
    bool operator<(const Next& other) const {
      return least != other.least ? least > other.least : begun < other.begun;
    }
  };
  using Key = std::vector<int64_t>;

  static bool IsOver(const State& state) {
    return std::all_of(state.rests.begin(), state.rests.end(), [](const Rest& rest) {
      return rest.backwards() == 0 && rest.weights[0] == 0 && rest.weights[1] == 0;
    });
  }

  int64_t HeldBy(const State& state) const {
    int64_t bytes = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Held& held = groups_[g].held;
      const Rest& rest = state.rests[g];
      bytes += rest.dropped.count * held.dropped + rest.full[0].count * held.forward +
               rest.full[1].count * held.recomputed + rest.weights[0] * held.input_half +
               rest.weights[1] * held.recomputed_half;
    }
    return bytes;
  }

  // From the work that is left, and from the way of each cell to its last backward.
  double Least(const State& state) const {
    double least = state.reached, halves = 0, weights = 0, tail = HUGE_VAL;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      const Rest& rest = state.rests[g];
      const auto forwards = static_cast<double>(rest.forwards);
      const auto backwards = static_cast<double>(rest.backwards());
      halves += forwards * group.f + backwards * group.b +
                static_cast<double>(rest.dropped.count) * group.r;
      weights += (backwards + static_cast<double>(rest.weights[0] + rest.weights[1])) * group.w;
      if (backwards > 0) tail = std::min(tail, group.tail);
      const double after = group.b + std::max(group.tail, group.w);
      if (forwards > 0)
        least = std::max(least, std::max(state.now, group.head) + (forwards - 1) * group.f +
                                    group.residence - group.b + after);
      for (const Waiting* waiting : {&rest.dropped, &rest.full[0], &rest.full[1]})
        if (!waiting->late.empty()) least = std::max(least, waiting->late.back() + after);
    }
    least = std::max(least, state.now + halves + weights);
    return tail == HUGE_VAL ? least : std::max(least, state.now + halves + tail);
  }

  bool Dominates(const State& a, const State& b) {
    ++work_used_;
    if (a.now > b.now || a.reached > b.least) return false;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Rest &x = a.rests[g], &y = b.rests[g];
      work_used_ += static_cast<int64_t>(x.dropped.late.size() + x.full[0].late.size() +
                                         x.full[1].late.size());
      if (!x.dropped.NeverLater(y.dropped, b.now) || !x.full[0].NeverLater(y.full[0], b.now) ||
          !x.full[1].NeverLater(y.full[1], b.now))
        return false;
    }
    return true;
  }

  void Push(State state) {
    Key key;
    for (Rest& rest : state.rests) {
      for (Waiting* waiting : {&rest.dropped, &rest.full[0], &rest.full[1]}) {
        waiting->GoOn(state.now);
        key.push_back(waiting->count);
        work_ -= static_cast<int64_t>(waiting->late.size());
      }
      key.insert(key.end(), {rest.forwards, rest.weights[0], rest.weights[1]});
    }
    work_ -= static_cast<int64_t>(key.size());
    state.least = std::max(state.least, Least(state));
    std::vector<int>& alike = alike_[std::move(key)];
    work_used_ = 0;
    const bool slower = std::any_of(alike.begin(), alike.end(),
                                    [&](int other) { return Dominates(states_[other], state); });
    if (!slower)
      std::erase_if(alike, [&](int other) {
        return states_[other].dominated = Dominates(state, states_[other]);
      });
    work_ -= work_used_;
    if (slower) return;
    const int at = static_cast<int>(states_.size());
    alike.push_back(at);
    open_.push({state.least, state.begun, at});
    states_.push_back(std::move(state));
  }

  // Begins each task that may come next. Between tasks nobody waits without need.
  void Expand(int at) {
    const State from = states_[at];
    const int64_t room = limit_ - HeldBy(from);
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      const Held& held = group.held;
      const Rest& rest = from.rests[g];
      const auto push = [&](double end, int64_t more, auto change, double tail = 0) {
        if (more > room) return;
        State to = from;
        to.now = end;
        to.reached = std::max(to.reached, end + tail);
        ++to.begun;
        change(to.rests[g]);
        Push(std::move(to));
      };
      if (rest.forwards > 0) {
        const double begin = std::max(from.now, group.head);
        const double ready = begin + group.residence - group.b;
        push(begin + group.f, held.forward,
             [&](Rest& to) { --to.forwards, to.full[0].Add(ready); });
        push(begin + group.f, held.dropped,
             [&](Rest& to) { --to.forwards, to.dropped.Add(ready); });
      }
      if (rest.dropped.count > 0)
        push(from.now + group.r, held.recomputed - held.dropped,
             [&](Rest& to) { to.full[1].Add(to.dropped.Take(from.now)); });
      for (const int kind : {0, 1}) {
        if (rest.full[kind].count > 0) {
          const double end = std::max(from.now, rest.full[kind].First(from.now)) + group.b;
          const int64_t more = group.split ? kind == 0 ? held.input_half - held.forward
                                                       : held.recomputed_half - held.recomputed
                                           : 0;
          push(
              end, more,
              [&](Rest& to) {
                to.full[kind].Take(from.now);
                to.weights[kind] += group.split;
              },
              group.tail);
        }
        if (rest.weights[kind] > 0)
          push(from.now + group.w, 0, [&](Rest& to) { --to.weights[kind]; });
      }
    }
  }

  const std::vector<Group>& groups_;
  const int64_t limit_;
  int64_t work_, work_used_ = 0;
  std::vector<State> states_;
  std::map<Key, std::vector<int>> alike_;  // those that have done the same work
  std::priority_queue<Next> open_;
};

}  // namespace

double OneDevice(const std::vector<Group>& groups, int64_t limit, int64_t work) {
  return BestFirst(groups, limit, work).Run();
}

}  // namespace pp::search
