#include "runtime/plan/lanes.h"

#include <algorithm>
#include <chrono>

namespace pp {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Lanes::Lanes(const Args& args) : args_(args) {
  const BoundList& bound = *args.list;
  over_ = std::make_unique<std::atomic<int64_t>[]>(bound.list.size());
  for (int i = 0; i < static_cast<int>(bound.list.size()); ++i) AddToQueue(i, bound.list[i]);
}

void Lanes::AddToQueue(int index, const Instruction& instruction) {
  const Lane lane = Info(instruction.op).lane;
  if (lane == Lane::kCompute) return;
  Port port{Way::kSend, Channel::kReduce, -1};
  if (lane != Lane::kReduce)
    port = {lane == Lane::kSend ? Way::kSend : Way::kRecv, Channel::kMessage, instruction.peer};
  const auto found = std::find_if(queues_.begin(), queues_.end(), [&](const Queue& queue) {
    return queue.port.channel == port.channel && queue.port.way == port.way &&
           queue.port.peer == port.peer;
  });
  if (found != queues_.end()) {
    found->indices.push_back(index);
  } else {
    queues_.push_back({port, {index}});
  }
  ++total_;
}

void Lanes::Begin(int64_t step) {
  PP_CHECK(finished() && step > 0 && step != step_.load());
  passed_.store(-1, std::memory_order_relaxed);
  left_.store(total_, std::memory_order_relaxed);
  step_.store(step);
  if (total_ > 0) args_.transport->bell().Ring();
}

void Lanes::Passed(int index) {
  passed_.store(index, std::memory_order_release);
  if (args_.list->releases[index]) args_.transport->bell().Ring();
}

Status Lanes::Advance(bool* moved) {
  const int64_t step = step_.load();
  if (step != running_) {
    for (Queue& queue : queues_) queue.next = 0;
    running_ = step;
  }
  if (step == 0) return {};
  for (Queue& queue : queues_) PP_RETURN_IF_ERROR(AdvanceQueue(&queue, moved));
  return {};
}

Status Lanes::AdvanceQueue(Queue* queue, bool* moved) {
  while (queue->next < queue->indices.size()) {
    const int index = queue->indices[queue->next];
    if (!queue->started) {
      if (args_.list->waits_for[index] > passed_.load(std::memory_order_acquire)) return {};
      if (args_.recorder != nullptr) queue->start = Now();
      PP_RETURN_IF_ERROR(StartNext(*queue, index));
      queue->started = *moved = true;
      ++in_flight_;
    }
    bool over = false;
    PP_RETURN_IF_ERROR(TestNext(*queue, index, &over));
    if (!over) return {};
    if (args_.recorder != nullptr) args_.recorder->Add(index, running_, queue->start, Now());
    queue->started = false;
    ++queue->next;
    --in_flight_;
    *moved = true;
    over_[index].store(running_, std::memory_order_release);
    left_.fetch_sub(1, std::memory_order_acq_rel);
    args_.compute_bell->Ring();
  }
  return {};
}

Status Lanes::StartNext(const Queue& queue, int index) {
  const BoundList& bound = *args_.list;
  switch (bound.list[index].op) {
    case Op::kReduceTied:
      return args_.tied->Start();
    case Op::kReduceNorm:
      return args_.norm->Start();
    default:
      return args_.transport->Start(queue.port, bound.data[index], bound.bytes[index]);
  }
}

Status Lanes::TestNext(const Queue& queue, int index, bool* over) {
  switch (args_.list->list[index].op) {
    case Op::kReduceTied:
      return args_.tied->Test(over);
    case Op::kReduceNorm:
      return args_.norm->Test(over);
    default:
      return args_.transport->Test(queue.port, over);
  }
}

}  // namespace pp
