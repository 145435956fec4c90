#include "runtime/plan/lanes.h"

#include <algorithm>

#include "runtime/comm/clock.h"

namespace pp {

Lanes::Lanes(Args args)
    : args_(std::move(args)),
      waits_([this](int index, int64_t iteration, double begin, double end) {
        Expose(index, iteration, begin, end);
      }) {
  const auto size = static_cast<int>(args_.list->list.size());
  marks_ = std::make_unique<Mark[]>(size);
  ports_.resize(size);
  streams_.resize(size);
  collectives_.resize(size);
  size_t next = 0;
  for (int i = 0; i < size; ++i) {
    AddToLane(i);
    if (IsMessage(args_.list->list[i])) streams_[i] = args_.transport->QueueOf(ports_[i]);
    if (Info(args_.list->list[i].op).lane != Lane::kReduce) continue;
    collectives_[i] = std::make_unique<RunningCollective>(args_.collectives[next++],
                                                          args_.transport, &args_.device->reduce());
    streams_[i] = collectives_[i]->stream();
  }
  for (LaneState& lane : lanes_) lane.next = lane.indices.size();  // at the end of iteration 0
}

Port Lanes::PortOf(const Instruction& message) const {
  // Tensor-parallel peers and replicas have their own channels.
  Place peer = args_.topology->PlaceOf(args_.transport->rank());
  peer.device = message.peer;
  const bool act = KindOfMessage(message.op) == Kind::kAct;
  return {Info(message.op).lane == Lane::kSend ? Way::kSend : Way::kRecv,
          act ? Channel::kAct : Channel::kGrad, args_.topology->RankOf(peer)};
}

void Lanes::AddToLane(int index) {
  const Instruction& instruction = args_.list->list[index];
  if (Info(instruction.op).lane == Lane::kCompute) return;
  int lane = kReductions;
  if (IsMessage(instruction)) {
    ports_[index] = PortOf(instruction);
    lane = args_.transport->LaneOf(ports_[index]);
  }
  const auto found = std::find_if(lanes_.begin(), lanes_.end(),
                                  [&](const LaneState& state) { return state.lane == lane; });
  if (found != lanes_.end()) {
    found->indices.push_back(index);
  } else {
    lanes_.push_back({lane, {index}});
  }
}

void Lanes::Begin(const Iteration& iteration) {
  PP_CHECK(iteration.number == begun_.load() + 1);
  if (iteration.part == BodyPart::kRest) rest_.store(iteration.number);
  others_[iteration.number % 2].store(iteration.others, std::memory_order_relaxed);
  begun_.store(iteration.number);
  if (!lanes_.empty()) args_.transport->bell().Ring();
}

void Lanes::Passed(int index, Ticket ticket) {
  const int64_t iteration = begun_.load(std::memory_order_relaxed);
  marks_[index].tickets[iteration % 2].store(ticket, std::memory_order_relaxed);
  marks_[index].passed.store(iteration, std::memory_order_release);
  if (args_.list->releases[index]) args_.transport->bell().Ring();
}

void Lanes::Await(int index, int64_t iteration) {
  const Mark& mark = marks_[index];
  // Nobody waits for what an iteration has left out: the list is verified.
  const auto ready = [&] {
    return Over(index, iteration) || mark.submitted.load(std::memory_order_acquire) >= iteration;
  };
  if (!ready()) {
    waiting_.store(true, std::memory_order_relaxed);
    const double begin = SteadySeconds();
    args_.compute_bell->WaitUntil([&] { return ready() || args_.stop->load(); });
    waiting_.store(false, std::memory_order_relaxed);
    if (!ready()) return;  // stopped
    if (streams_[index] == nullptr)
      Expose(index, iteration, begin, mark.end.load(std::memory_order_relaxed));
  }
  if (!Over(index, iteration))
    waits_.Add(index, iteration, &args_.device->compute(), *streams_[index],
               mark.end_tickets[iteration % 2].load(std::memory_order_relaxed), args_.compute_bell,
               *args_.stop);
}

// What comes before its start is not communication, but the work that it waits for; what comes
// after its end is this thread waking up.
void Lanes::Expose(int index, int64_t iteration, double begin, double end) {
  const Mark& mark = marks_[index];
  if (Over(index, iteration)) begin = std::max(begin, mark.start.load(std::memory_order_relaxed));
  times_[CommKindOf(args_.list->list[index].op)].exposed += std::max(0.0, end - begin);
}

CommTimes Lanes::times() {
  waits_.Count();
  return times_;
}

bool Lanes::Executes(int index, int64_t iteration) const {
  if (!args_.list->overlaps) return true;
  const BodyPart part = iteration == 1              ? BodyPart::kAhead
                        : iteration == rest_.load() ? BodyPart::kRest
                                                    : BodyPart::kAll;
  return args_.list->Executes(index, part);
}

// Of what the compute lane had submitted when it had passed what the instruction waits for.
Ticket Lanes::TicketFor(int index, int64_t iteration) const {
  const Dependence& after = args_.list->waits_for[index];
  if (after.index < 0) return 0;
  const int64_t of = iteration + after.body;
  return of < 1 ? 0 : marks_[after.index].tickets[of % 2].load(std::memory_order_relaxed);
}

// With a stream: it may be submitted.
bool Lanes::MayStart(int index, int64_t iteration) const {
  const Dependence& after = args_.list->waits_for[index];
  if (after.index < 0) return true;
  // Iteration 0 does not exist: all passed.
  if (marks_[after.index].passed.load(std::memory_order_acquire) < iteration + after.body)
    return false;
  return streams_[index] != nullptr || args_.device->compute().Done(TicketFor(index, iteration));
}

Status Lanes::Advance(bool* moved) {
  for (LaneState& lane : lanes_) PP_RETURN_IF_ERROR(AdvanceLane(&lane, moved));
  return {};
}

Status Lanes::AdvanceLane(LaneState* lane, bool* moved) {
  while (true) {
    EndSubmitted(lane, moved);
    if (lane->next == lane->indices.size()) {
      if (lane->iteration >= begun_.load()) return {};
      ++lane->iteration;
      lane->next = 0;
    }
    const int index = lane->indices[lane->next];
    if (!Executes(index, lane->iteration)) {
      ++lane->next;
      continue;
    }
    if (!lane->started) {
      if (!MayStart(index, lane->iteration)) return {};
      if (streams_[index] != nullptr) {
        if (lane->submitted.size() == kMostAhead) return {};
        PP_RETURN_IF_ERROR(Submit(lane, index));
        ++lane->next;
        *moved = true;
        continue;
      }
      if (!lane->submitted.empty()) return {};  // one at a time
      marks_[index].start.store(SteadySeconds(), std::memory_order_relaxed);
      PP_RETURN_IF_ERROR(StartNext(index, lane->iteration));
      lane->started = *moved = true;
      ++in_flight_;
    }
    bool over = false;
    PP_RETURN_IF_ERROR(TestNext(index, &over));
    if (!over) return {};
    *moved = true;
    lane->started = false;
    ++lane->next;
    --in_flight_;
    End(index, lane->iteration,
        {marks_[index].start.load(std::memory_order_relaxed), SteadySeconds()});
  }
}

Status Lanes::Submit(LaneState* lane, int index) {
  Queue& stream = *streams_[index];
  const int64_t iteration = lane->iteration;
  stream.Follow(args_.device->compute(), TicketFor(index, iteration));
  Submitted& one = lane->submitted.emplace_back(Submitted{.index = index, .iteration = iteration});
  stream.Stamp(&one.times.start);
  PP_RETURN_IF_ERROR(StartNext(index, iteration));
  one.end = stream.Stamp(&one.times.end);
  ++in_flight_;
  Mark& mark = marks_[index];
  mark.end_tickets[iteration % 2].store(one.end, std::memory_order_relaxed);
  mark.submitted.store(iteration, std::memory_order_release);
  args_.compute_bell->Ring();
  return {};
}

void Lanes::EndSubmitted(LaneState* lane, bool* moved) {
  while (!lane->submitted.empty()) {
    const Submitted& first = lane->submitted.front();
    if (!streams_[first.index]->Done(first.end)) return;
    End(first.index, first.iteration, first.times);
    lane->submitted.pop_front();
    --in_flight_;
    *moved = true;
  }
}

void Lanes::End(int index, int64_t iteration, const Recorder::Times& times) {
  times_[CommKindOf(args_.list->list[index].op)].total += times.end - times.start;
  if (args_.recorder != nullptr)
    args_.recorder->Add(index, args_.list->StepOf(index, At(iteration)), times);
  marks_[index].start.store(times.start, std::memory_order_relaxed);
  marks_[index].end.store(times.end, std::memory_order_relaxed);
  marks_[index].over.store(iteration, std::memory_order_release);
  args_.compute_bell->Ring();
}

Status Lanes::StartNext(int index, int64_t iteration) {
  const BoundList& bound = *args_.list;
  if (!collectives_[index])
    return args_.transport->Start(ports_[index], bound.data[index], bound.bytes[index]);
  const bool weights = bound.list[index].op == Op::kGatherWeights;
  return collectives_[index]->Start(
      weights ? bound.SlotOf(index, At(iteration), 0) * bound.weights_bytes[index] : 0);
}

Status Lanes::TestNext(int index, bool* over) {
  return collectives_[index] ? collectives_[index]->Test(over)
                             : args_.transport->Test(ports_[index], over);
}

}  // namespace pp
