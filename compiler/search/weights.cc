#include "compiler/search/weights.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "compiler/search/clock.h"
#include "compiler/search/ledger.h"

namespace pp::search {
namespace {

constexpr int kMostPasses = 8;

// Before which tasks a weight half may take a wait that is shorter than itself.
struct Short {
  bool forwards, backwards;
};

class Placer {
 public:
  Placer(const Problem& problem, const Plan& given, Short shorter)
      : problem_(problem), given_(given), short_(shorter), slack_(problem.devices, 0) {}

  // One pass. False: the memory does not suffice.
  bool Run() {
    plan_.lists.assign(problem_.devices, {});
    plan_.dropped = given_.dropped;
    places_.assign(problem_.devices, {});
    end_.assign(problem_.time.size(), kNever);
    longest_ = 0;
    for (bool moves = true; moves;) {
      moves = false;
      for (int d = 0; d < problem_.devices; ++d) {
        const auto& list = given_.lists[d];
        size_t& next = places_[d].next;
        while (next < list.size() && PartOf(list[next]) == Part::kWeight) ++next;
        if (next == list.size() || Ready(list[next]) == kNever) continue;
        if (!Put(d, list[next++])) return false;
        moves = true;
      }
    }
    for (int d = 0; d < problem_.devices; ++d) {
      if (places_[d].next < given_.lists[d].size()) return false;
      while (!places_[d].weights.empty()) PutWeight(d);
    }
    return true;
  }

  // Of the last pass; the next one knows it.
  double LongestWait() {
    for (int d = 0; d < problem_.devices; ++d) slack_[d] = longest_ - places_[d].waited;
    return longest_;
  }
  double makespan() const {
    double makespan = 0;
    for (int d = 0; d < problem_.devices; ++d)
      makespan = std::max(makespan, places_[d].time + problem_.after[d]);
    return makespan;
  }
  const Plan& plan() const { return plan_; }

 private:
  struct Place {
    size_t next = 0;              // in the given list
    double time = 0, waited = 0;  // since its first task
    int64_t level = 0;
    std::deque<Task> weights;  // those that are due
  };

  double Ready(Task task) const {
    const Task source = problem_.source[task];
    return source < 0 ? 0 : end_[source] + problem_.lag[task];
  }

  void Start(int device, Task task) {
    Place& place = places_[device];
    const double begin = std::max(place.time, Ready(task));
    if (!plan_.lists[device].empty()) place.waited += begin - place.time;
    longest_ = std::max(longest_, place.waited);
    place.time = end_[task] = begin + problem_.time[task];
    place.level += ChangeOf(problem_, plan_, task).net();
    plan_.lists[device].push_back(task);
  }

  void PutWeight(int device) {
    Start(device, places_[device].weights.front());
    places_[device].weights.pop_front();
  }

  // With the weight halves that go before it. False: there is no room.
  bool Put(int device, Task task) {
    Place& place = places_[device];
    const auto& weights = place.weights;
    const int64_t up = ChangeOf(problem_, plan_, task).up, limit = problem_.memory.limit[device];
    while (!weights.empty() && place.level + up > limit) PutWeight(device);
    if (place.level + up > limit) return false;
    const double ready = Ready(task);
    while (!weights.empty() && ready >= place.time + problem_.time[weights.front()])
      PutWeight(device);
    const bool may = PartOf(task) == Part::kForward ? short_.forwards : short_.backwards;
    if (may && !weights.empty()) {
      const double allowed = std::max(longest_, slack_[device]);
      if (place.waited + (ready - place.time) > allowed) PutWeight(device);
    }
    Start(device, task);
    if (PartOf(task) == Part::kBackward && problem_.split[CellOf(task)])
      place.weights.push_back(MakeTask(CellOf(task), Part::kWeight));
    return true;
  }

  const Problem& problem_;
  const Plan& given_;
  const Short short_;
  std::vector<double> slack_;  // by device
  double longest_ = 0;         // wait of a device so far
  Plan plan_;
  std::vector<Place> places_;
  std::vector<double> end_;  // by task; kNever: not yet
};

}  // namespace

std::optional<Plan> PlaceWeights(const Problem& problem, const Plan& plan) {
  const auto splits = [](uint8_t split) { return split != 0; };
  if (std::none_of(problem.split.begin(), problem.split.end(), splits)) return std::nullopt;
  std::optional<Plan> fastest;
  double least = kNever;
  for (const Short shorter : {Short{true, true}, {true, false}, {false, true}, {false, false}}) {
    Placer placer(problem, plan, shorter);
    double wait = kNever;
    for (int pass = 0; pass < kMostPasses && placer.Run(); ++pass) {
      if (placer.makespan() < least) fastest = placer.plan(), least = placer.makespan();
      if (const double longest = placer.LongestWait(); longest < wait) {
        wait = longest;
      } else {
        break;
      }
    }
  }
  return fastest;
}

}  // namespace pp::search
