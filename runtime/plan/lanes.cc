#include "runtime/plan/lanes.h"

#include <algorithm>

#include "runtime/comm/clock.h"

namespace pp {

Lanes::Lanes(Args args) : args_(std::move(args)) {
  const auto size = static_cast<int>(args_.list->list.size());
  marks_ = std::make_unique<Mark[]>(size);
  ports_.resize(size);
  collectives_.resize(size);
  size_t next = 0;
  for (int i = 0; i < size; ++i) {
    AddToQueue(i);
    if (Info(args_.list->list[i].op).lane != Lane::kReduce) continue;
    collectives_[i] = std::make_unique<RunningCollective>(args_.collectives[next++],
                                                          args_.transport, &args_.device->reduce());
  }
  for (Queue& queue : queues_) queue.next = queue.indices.size();  // at the end of iteration 0
}

Port Lanes::PortOf(const Instruction& message) const {
  // Tensor-parallel peers and replicas have their own channels.
  Place peer = args_.topology->PlaceOf(args_.transport->rank());
  peer.device = message.peer;
  const bool act = KindOfMessage(message.op) == Kind::kAct;
  return {Info(message.op).lane == Lane::kSend ? Way::kSend : Way::kRecv,
          act ? Channel::kAct : Channel::kGrad, args_.topology->RankOf(peer)};
}

void Lanes::AddToQueue(int index) {
  const Instruction& instruction = args_.list->list[index];
  if (Info(instruction.op).lane == Lane::kCompute) return;
  int lane = kReductions;
  if (IsMessage(instruction)) {
    ports_[index] = PortOf(instruction);
    lane = args_.transport->LaneOf(ports_[index]);
  }
  const auto found = std::find_if(queues_.begin(), queues_.end(),
                                  [&](const Queue& queue) { return queue.lane == lane; });
  if (found != queues_.end()) {
    found->indices.push_back(index);
  } else {
    queues_.push_back({lane, {index}});
  }
}

void Lanes::Begin(const Iteration& iteration) {
  PP_CHECK(iteration.number == begun_.load() + 1);
  if (iteration.part == BodyPart::kRest) rest_.store(iteration.number);
  begun_.store(iteration.number);
  if (!queues_.empty()) args_.transport->bell().Ring();
}

void Lanes::Passed(int index, Ticket ticket) {
  marks_[index].ticket.store(ticket, std::memory_order_relaxed);
  marks_[index].passed.store(begun_.load(std::memory_order_relaxed), std::memory_order_release);
  if (args_.list->releases[index]) args_.transport->bell().Ring();
}

void Lanes::Await(int index, int64_t iteration) {
  // Nobody waits for what an iteration has left out: the list is verified.
  auto over = [&] { return Over(index, iteration); };
  if (over()) return;
  waiting_.store(true, std::memory_order_relaxed);
  const double begin = SteadySeconds();
  args_.compute_bell->WaitUntil([&] { return over() || args_.stop->load(); });
  waiting_.store(false, std::memory_order_relaxed);
  if (!over()) return;  // stopped
  // What comes before its start is not communication, but the work that it waits for; what comes
  // after its end is this thread waking up.
  const double start = marks_[index].start.load(std::memory_order_relaxed);
  const double end = marks_[index].end.load(std::memory_order_relaxed);
  times_[CommKindOf(args_.list->list[index].op)].exposed +=
      std::max(0.0, end - std::max(begin, start));
}

bool Lanes::Executes(int index, int64_t iteration) const {
  if (!args_.list->overlaps) return true;
  const BodyPart part = iteration == 1              ? BodyPart::kAhead
                        : iteration == rest_.load() ? BodyPart::kRest
                                                    : BodyPart::kAll;
  return args_.list->Executes(index, part);
}

bool Lanes::MayStart(int index, int64_t iteration) const {
  const Dependence& after = args_.list->waits_for[index];
  if (after.index < 0) return true;
  const Mark& mark = marks_[after.index];  // iteration 0 does not exist: all passed
  return mark.passed.load(std::memory_order_acquire) >= iteration + after.body &&
         args_.device->compute().Done(mark.ticket.load(std::memory_order_relaxed));
}

Status Lanes::Advance(bool* moved) {
  for (Queue& queue : queues_) PP_RETURN_IF_ERROR(AdvanceQueue(&queue, moved));
  return {};
}

Status Lanes::AdvanceQueue(Queue* queue, bool* moved) {
  while (true) {
    if (queue->next == queue->indices.size()) {
      if (queue->iteration >= begun_.load()) return {};
      ++queue->iteration;
      queue->next = 0;
    }
    const int index = queue->indices[queue->next];
    if (!Executes(index, queue->iteration)) {
      ++queue->next;
      continue;
    }
    if (!queue->started) {
      if (!MayStart(index, queue->iteration)) return {};
      marks_[index].start.store(SteadySeconds(), std::memory_order_relaxed);
      PP_RETURN_IF_ERROR(StartNext(*queue, index));
      queue->started = *moved = true;
      ++in_flight_;
    }
    bool over = false;
    PP_RETURN_IF_ERROR(TestNext(index, &over));
    if (!over) return {};
    *moved = true;
    queue->started = false;
    ++queue->next;
    --in_flight_;
    End(index, *queue);
  }
}

void Lanes::End(int index, const Queue& queue) {
  const double start = marks_[index].start.load(std::memory_order_relaxed), end = SteadySeconds();
  times_[CommKindOf(args_.list->list[index].op)].total += end - start;
  if (args_.recorder != nullptr)
    args_.recorder->Add(index, args_.list->StepOf(index, {queue.iteration}), {start, end});
  marks_[index].end.store(end, std::memory_order_relaxed);
  marks_[index].over.store(queue.iteration, std::memory_order_release);
  args_.compute_bell->Ring();
}

Status Lanes::StartNext(const Queue& queue, int index) {
  const BoundList& bound = *args_.list;
  if (!collectives_[index])
    return args_.transport->Start(ports_[index], bound.data[index], bound.bytes[index]);
  const bool weights = bound.list[index].op == Op::kGatherWeights;
  return collectives_[index]->Start(
      weights ? bound.SlotOf(index, {queue.iteration}, 0) * bound.weights_bytes[index] : 0);
}

Status Lanes::TestNext(int index, bool* over) {
  return collectives_[index] ? collectives_[index]->Test(over)
                             : args_.transport->Test(ports_[index], over);
}

}  // namespace pp
