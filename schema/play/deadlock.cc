#include "schema/play/deadlock.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace pp::play {
namespace {

class Explainer {
 public:
  explicit Explainer(const State& state) : state_(state), traffic_(state.traffic) {}

  // Something that has stopped.
  Blocked First() const {
    for (size_t d = 0; d < state_.places.size(); ++d)
      if (!state_.AtEnd(static_cast<int>(d))) return InLane(static_cast<int>(d));
    for (size_t s = 0;; ++s)
      if (!state_.IsEmpty(static_cast<int32_t>(s)))
        return Operation(state_.ItemOf(static_cast<int32_t>(s)).front().end);
  }

  // Says why `at` does not proceed. Returns what it waits for.
  Blocked Next(Blocked& at) const {
    if (at.end >= 0) return NextOfOperation(at);
    const int32_t next = state_.places[at.device].next;
    if (at.index > next) return Because(at, "comes after", InLane(at.device));
    return Because(at, "waits for", Operation(traffic_.joins[at.device][next]));
  }

 private:
  static Blocked Because(Blocked& at, std::string_view why, Blocked next) {
    at.why = why;
    return next;
  }
  // Where a compute lane has stopped: a WAIT, or an operation that it waits for in its place.
  Blocked InLane(int device) const {
    const int32_t next = state_.places[device].next, joined = traffic_.joins[device][next];
    return traffic_.ends[joined].index == next ? Operation(joined) : Blocked{device, next};
  }
  Blocked Operation(int32_t end) const {
    return {traffic_.ends[end].device, traffic_.ends[end].index, end};
  }

  int32_t StreamOf(int32_t end) const { return static_cast<int32_t>(state_.ends[end].stream); }

  Blocked NextOfOperation(Blocked& at) const {
    const End& end = traffic_.ends[at.end];
    const int32_t stream = StreamOf(at.end);
    const auto item = state_.ItemOf(stream);
    const bool is_next = Has(item, at.end);
    if (state_.queues[stream].open == 0) {
      if (is_next && !state_.Passed(end)) {
        const bool is_there = end.after == state_.places[end.device].next;
        return Because(at, "needs", is_there ? InLane(end.device) : Blocked{end.device, end.after});
      }
      for (const State::Operation& o : item)
        if (!state_.Passed(traffic_.ends[o.end]))
          return Because(at, is_next ? "is grouped with" : "is queued behind", Operation(o.end));
      if (!is_next) return Because(at, "is queued behind", Operation(item.front().end));
      return Because(at, "finds no room alongside", Operation(Unmatched(Occupant(end.device))));
    }
    if (!is_next) return Because(at, "is queued behind", Operation(Unmatched(stream)));
    if (state_.IsMatched(end)) return Because(at, "is grouped with", Operation(Unmatched(stream)));
    for (int32_t e = traffic_.transfers[end.transfer].first_end;; ++e)
      if (!HasStarted(e)) return Because(at, "waits to be matched by", Operation(e));
  }

  // REQUIRES: the end is not over.
  bool HasStarted(int32_t end) const {
    const int32_t stream = StreamOf(end);
    return state_.queues[stream].open > 0 && Has(state_.ItemOf(stream), end);
  }
  static bool Has(std::span<const State::Operation> item, int32_t end) {
    return std::any_of(item.begin(), item.end(), [&](const auto& o) { return o.end == end; });
  }
  // The first operation of a started item that is not matched.
  int32_t Unmatched(int32_t stream) const {
    const auto item = state_.ItemOf(stream);
    return std::find_if(item.begin(), item.end(),
                        [&](const auto& o) { return !state_.IsMatched(traffic_.ends[o.end]); })
        ->end;
  }
  int32_t Occupant(int device) const {
    int32_t stream = state_.places[device].first_stream;
    while (state_.IsEmpty(stream) || state_.queues[stream].open == 0) ++stream;
    return stream;
  }

  const State& state_;
  const Traffic& traffic_;
};

}  // namespace

std::vector<Blocked> FindCycle(const State& state) {
  const Explainer explainer(state);
  std::vector<Blocked> way;
  std::map<std::pair<int32_t, int32_t>, size_t> seen;  // device, instruction -> place in the way
  Blocked at = explainer.First();
  while (seen.try_emplace({at.device, at.index}, way.size()).second) {
    way.push_back(at);
    at = explainer.Next(way.back());
  }
  way.erase(way.begin(), way.begin() + static_cast<int64_t>(seen[{at.device, at.index}]));
  return way;
}

std::string ToText(const Program& unrolled, const std::vector<Blocked>& cycle) {
  constexpr size_t kShown = 12;
  std::string text = NameOf(unrolled, cycle[0].device, cycle[0].index);
  for (size_t i = 0; i < cycle.size(); ++i) {
    text += fmt::format("{} {} ", i == 0 ? "" : ", which", cycle[i].why);
    if (i + 1 == cycle.size()) {
      text += "the first";
    } else if (i + 1 == kShown) {
      return text + fmt::format("{} more", cycle.size() - kShown);
    } else {
      text += NameOf(unrolled, cycle[i + 1].device, cycle[i + 1].index);
    }
  }
  return text;
}

}  // namespace pp::play
