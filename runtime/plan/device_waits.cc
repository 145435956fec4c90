#include "runtime/plan/device_waits.h"

namespace pp {

void DeviceWaits::Add(int index, int64_t iteration, Queue* compute, const Queue& stream,
                      Ticket ticket, Bell* bell, const std::atomic<bool>& stop) {
  compute_ = compute;
  const int64_t number = next_.load();
  if (number - first_.load() == kMost) {
    const Wait& first = waits_[first_.load() % kMost];
    bell->WaitUntil([&] { return compute->Done(first.end.load()) || stop.load(); });
  }
  if (stop.load()) return;
  Count();
  Wait& wait = waits_[number % kMost];
  wait.index.store(index);
  wait.iteration = iteration;
  compute->Stamp(&wait.begin_seconds);
  compute->Follow(stream, ticket);
  wait.end.store(compute->Stamp(&wait.end_seconds));
  next_.store(number + 1);
}

void DeviceWaits::Count() {
  for (; first_.load() < next_.load(); ++first_) {
    const Wait& first = waits_[first_.load() % kMost];
    if (!compute_->Done(first.end.load())) return;
    over_(first.index.load(), first.iteration, first.begin_seconds, first.end_seconds);
  }
}

int DeviceWaits::current() const {
  for (int64_t number = first_.load(); number < next_.load(); ++number) {
    const Wait& wait = waits_[number % kMost];
    const int index = wait.index.load();
    if (!compute_->Done(wait.end.load())) return index;
  }
  return -1;
}

}  // namespace pp
