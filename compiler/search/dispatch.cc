#include "compiler/search/dispatch.h"

#include <algorithm>

#include "compiler/search/ledger.h"

namespace pp::search {
Dispatcher::Dispatcher(const Problem& problem)
    : problem_(problem),
      places_(problem.devices),
      cells_(problem.cells()),
      arrival_(problem.time.size()),
      player_(problem.devices, *this) {
  plan_.lists.resize(problem.devices);
  for (int cell = 0; cell < problem.cells(); ++cell) cells_[cell].held = &problem.HeldBy(cell);
}

void Dispatcher::Reset() {
  plan_.dropped.assign(problem_.cells(), 0);
  for (Cell& cell : cells_) cell.state = State::kWaiting;
  for (size_t task = 0; task < arrival_.size(); ++task)
    arrival_[task] = problem_.source[task] < 0 ? 0 : kNever;
  player_.Reset();
  for (int d = 0; d < problem_.devices; ++d) {
    plan_.lists[d].clear();
    places_[d] = {0, 0, 0, 0, problem_.memory.limit[d], 0, {}};
    const auto& forwards = rules_->forwards[d];
    for (size_t i = 0; i < forwards.size(); ++i) cells_[forwards[i]].rank = static_cast<int>(i);
  }
}

int64_t Dispatcher::HalfOf(int cell) const {
  const Held& held = *cells_[cell].held;
  return plan_.dropped[cell] ? held.recomputed_half : held.input_half;
}

// Simulates the rest of the device in the thriftiest way that keeps both orders: one backward at a
// time, with missing forwards just before it and without keeping their activation.
bool Dispatcher::Drains(int device, Until until) const {
  const Place& place = places_[device];
  const auto& forwards = rules_->forwards[device];
  const auto& backwards = rules_->backwards[device];
  int64_t memory = place.memory;
  for (size_t i = place.next_weight; i < place.weights.size(); ++i)
    memory -= HalfOf(place.weights[i]);
  int alive = place.in_flight;
  size_t forward = place.next_forward;
  for (size_t b = place.next_backward; b < backwards.size(); ++b, ++looked_ahead_) {
    // Empty: the current state does not matter any more.
    if (until == Until::kEmpty && alive == 0 && forward == b) return true;
    const auto& [held, rank, state] = cells_[backwards[b]];
    if (state == State::kKept || state == State::kRecomputed) {
      memory -= state == State::kKept ? held->forward : held->recomputed;
      --alive;
      continue;
    }
    if (state == State::kWaiting && static_cast<size_t>(rank) >= forward) {
      for (; forward < static_cast<size_t>(rank); ++forward) {
        memory += cells_[forwards[forward]].held->dropped;
        if (memory > place.limit) return false;
      }
      ++forward;
      if (memory + held->forward > place.limit) return false;  // its backward follows immediately
      continue;
    }
    if (state == State::kDropped) --alive;
    memory += held->recomputed - held->dropped;
    if (memory > place.limit) return false;
    memory -= held->recomputed;
  }
  return true;
}

bool Dispatcher::MayForward(int device, int cell, State state) {
  Place& place = places_[device];
  const Held& held = *cells_[cell].held;
  const int64_t more = state == State::kKept ? held.forward : held.dropped;
  if (place.memory + more > place.limit) return false;
  place.memory += more;
  cells_[cell].state = state;
  ++place.next_forward;
  ++place.in_flight;
  const bool drains = Drains(device, Until::kEmpty);
  place.memory -= more;
  cells_[cell].state = State::kWaiting;
  --place.next_forward;
  --place.in_flight;
  return drains;
}

bool Dispatcher::MayRecompute(int device, int cell) {
  Place& place = places_[device];
  const Held& held = *cells_[cell].held;
  const int64_t more = held.recomputed - held.dropped;
  if (place.memory + more > place.limit) return false;
  place.memory += more;
  cells_[cell].state = State::kRecomputed;
  const bool drains = Drains(device, Until::kEmpty);
  place.memory -= more;
  cells_[cell].state = State::kDropped;
  return drains;
}

// The cell to recompute next, in the order of the backwards; -1 if there is none.
int Dispatcher::FirstDropped(int device) const {
  const Place& place = places_[device];
  const auto& backwards = rules_->backwards[device];
  int seen = 0;
  for (size_t b = place.next_backward; b < backwards.size() && seen < place.in_flight; ++b) {
    if (cells_[backwards[b]].state == State::kDropped) return backwards[b];
    if (cells_[backwards[b]].state != State::kWaiting) ++seen;
  }
  return -1;
}

// Whether the device of the next stage has nothing to do until this cell's forward.
bool Dispatcher::Starves(int cell, double now) const {
  const Task sink = problem_.sink[MakeTask(cell, Part::kForward)];
  if (sink < 0) return false;
  const int device = problem_.device[CellOf(sink)];
  const Place& next = places_[device];
  const auto& forwards = rules_->forwards[device];
  return player_.FreeAt(device) <= now && next.next_forward < forwards.size() &&
         forwards[next.next_forward] == CellOf(sink);
}

Task Dispatcher::ChooseForward(int device, double now) {
  Place& place = places_[device];
  const int cell = rules_->forwards[device][place.next_forward];
  const CellRule& rule = rules_->cells[cell];
  const Task task = MakeTask(cell, Part::kForward);
  const int weights = static_cast<int>(place.weights.size() - place.next_weight);
  if (arrival_[task] > now || place.in_flight >= rule.window || weights > rule.weights) return -1;
  const Held& held = *cells_[cell].held;
  const int inputs = std::max(0, rule.reserve - place.in_flight - 1);
  const int64_t room = place.limit - place.memory - held.forward;
  const bool keep = rule.keep && room >= 0 && (held.dropped == 0 || inputs <= room / held.dropped);
  const bool at_once = place.in_flight == 0 && problem_.sink[task] < 0;
  plan_.dropped[cell] = 0;
  if ((keep || at_once) && MayForward(device, cell, State::kKept)) return task;
  if (!MayForward(device, cell, State::kDropped)) return -1;
  plan_.dropped[cell] = 1;
  return task;
}

// If whole backwards and weight halves add to one gradient, they do so in the order of the
// backwards: a weight half that is due before `backward` goes first.
Task Dispatcher::AfterItsSum(int device, Task backward) const {
  if (!problem_.AddsToSum(backward)) return backward;
  const Place& place = places_[device];
  const auto same = [&](int cell) { return problem_.sum[cell] == problem_.sum[CellOf(backward)]; };
  const auto next = place.weights.begin() + static_cast<std::ptrdiff_t>(place.next_weight);
  if (std::none_of(next, place.weights.end(), same)) return backward;
  return MakeTask(*next, Part::kWeight);
}

Task Dispatcher::Best(int device, double now) {
  Place& place = places_[device];
  const auto& backwards = rules_->backwards[device];
  const bool done = place.next_backward == backwards.size();
  const int next = done ? -1 : backwards[place.next_backward];
  Task backward = -1;
  if (!done) {
    const Task task = MakeTask(next, Part::kBackward);
    const State state = cells_[next].state;
    const bool resident = state == State::kKept || state == State::kRecomputed;
    if (resident && arrival_[task] <= now) backward = task;
  }
  // Looking ahead takes long: only for what is the best as far as is known.
  const auto& forwards = rules_->forwards[device];
  Task forward = -1;
  if (place.next_forward < forwards.size()) {
    const int cell = forwards[place.next_forward];
    const First first = rules_->cells[cell].first;
    const bool if_starving =
        first == First::kForwardIfStarving || first == First::kForwardAlwaysIfStarving;
    const bool before_backward =
        first == First::kForwardAlways || first == First::kForwardAlwaysIfStarving;
    const bool goes_first = first != First::kRecompute && (!if_starving || Starves(cell, now));
    if (backward < 0 || (before_backward && goes_first)) forward = ChooseForward(device, now);
    if (forward >= 0 && goes_first) return forward;
  }
  if (backward >= 0) return AfterItsSum(device, backward);
  Task recompute = -1;
  if (const int dropped = FirstDropped(device); dropped >= 0 && MayRecompute(device, dropped)) {
    recompute = MakeTask(dropped, Part::kRecompute);
    const double arrival = arrival_[MakeTask(dropped, Part::kBackward)];
    const bool urgent =
        dropped == next && arrival <= now + problem_.time[recompute] + problem_.tiny;
    if (urgent) return recompute;
  }
  if (forward >= 0) return forward;
  if (place.next_weight < place.weights.size())
    return MakeTask(place.weights[place.next_weight], Part::kWeight);
  return recompute >= 0 && rules_->cells[CellOf(recompute)].early ? recompute : -1;
}

void Dispatcher::Start(int device, Task task, double now) {
  Place& place = places_[device];
  const int cell = CellOf(task);
  switch (PartOf(task)) {
    case Part::kForward:
      cells_[cell].state = plan_.dropped[cell] ? State::kDropped : State::kKept;
      ++place.next_forward;
      ++place.in_flight;
      break;
    case Part::kRecompute:
      cells_[cell].state = State::kRecomputed;
      break;
    case Part::kBackward:
      if (problem_.split[cell]) place.weights.push_back(cell);
      cells_[cell].state = State::kDone;
      ++place.next_backward;
      --place.in_flight;
      break;
    case Part::kWeight:
      ++place.next_weight;
      break;
  }
  place.memory += ChangeOf(problem_, plan_, task).net();
  plan_.lists[device].push_back(task);
  const Task sink = problem_.sink[task];
  if (sink < 0) return;
  const int other = problem_.device[CellOf(sink)];
  arrival_[sink] = now + problem_.time[task] + problem_.lag[sink];
  player_.Wake(arrival_[sink], other);
  if (PartOf(task) == Part::kBackward)
    player_.Wake(std::max(now, arrival_[sink] - problem_.Time(CellOf(sink), Part::kRecompute)),
                 other);
}

std::optional<double> Dispatcher::Choose(int device, double now) {
  const Task task = Best(device, now);
  if (task < 0) return std::nullopt;
  Start(device, task, now);
  makespan_ = std::max(makespan_, now + problem_.time[task] + problem_.after[device]);
  if (makespan_ > cutoff_ || work() > work_end_) player_.Stop();
  return problem_.time[task];
}

bool Dispatcher::MayFollow(const Rules& rules) {
  rules_ = &rules;
  Reset();
  for (int d = 0; d < problem_.devices; ++d)
    if (!Drains(d, Until::kEnd)) return false;
  return true;
}

double Dispatcher::Run(const Rules& rules, double cutoff, int64_t most_work) {
  rules_ = &rules;
  Reset();
  makespan_ = 0;
  cutoff_ = cutoff;
  work_end_ = work() + most_work;
  for (int d = 0; d < problem_.devices; ++d) player_.Wake(0, d);
  if (!player_.Run()) return kNever;
  for (int d = 0; d < problem_.devices; ++d)
    if (places_[d].next_backward < rules.backwards[d].size() ||
        places_[d].next_weight < places_[d].weights.size())
      return kNever;
  return makespan_;
}

}  // namespace pp::search
