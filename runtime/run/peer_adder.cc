#include "runtime/run/peer_adder.h"

#include <algorithm>
#include <utility>

#include "schema/model/layout.h"

namespace pp {

PeerAdder::PeerAdder(Args args) : args_(std::move(args)) {
  const auto members = static_cast<int64_t>(args_.group.size());
  for (const int64_t numbers : args_.numbers) {
    const int64_t bytes = numbers * 4;
    const auto cut = [&](int64_t member) {
      return std::min(bytes, (bytes * member / members + kAlign - 1) / kAlign * kAlign);
    };
    // Its place is given each time, from the beginning of the arena.
    CollectiveArgs sum{.channel = Channel::kPeers,
                       .group = args_.group,
                       .rank = args_.transport->rank(),
                       .value = args_.device->at(0),
                       .exchange = args_.exchange};
    for (int64_t k = 0; k < members; ++k)
      sum.shards.push_back({{cut(k), (k + 1 == members ? bytes : cut(k + 1)) - cut(k)}});
    sums_[numbers] =
        std::make_unique<Collective>(std::move(sum), args_.transport, &args_.device->reduce());
  }
}

void PeerAdder::StartSum(float* data, int64_t n) {
  if (args_.stop->load()) return;  // the last sum may never be over
  PP_CHECK(sums_.contains(n) && over_.load() == asked_.load());
  data_ = data;
  numbers_ = n;
  asked_.fetch_add(1, std::memory_order_release);
  args_.transport->bell().Ring();
}

void PeerAdder::Wait() {
  const auto over = [&] {
    return over_.load(std::memory_order_acquire) == asked_.load() || args_.stop->load();
  };
  if (over()) return;
  const double begin = SteadySeconds();
  waiting_.store(true, std::memory_order_relaxed);
  args_.transport->bell().Ring();  // it may nap less often now
  while (true) {
    const uint64_t seen = args_.compute_bell->rings();
    if (over()) break;
    args_.compute_bell->Wait(seen);
  }
  waiting_.store(false, std::memory_order_relaxed);
  waited_ += SteadySeconds() - begin;
}

Status PeerAdder::Advance(bool* moved) {
  const int64_t asked = asked_.load(std::memory_order_acquire);
  if (over_.load(std::memory_order_relaxed) == asked) return {};
  Collective& sum = *sums_.at(numbers_);
  if (begun_ != asked) {
    PP_RETURN_IF_ERROR(sum.Start(reinterpret_cast<std::byte*>(data_) - args_.device->at(0)));
    begun_ = asked;
    *moved = true;
  }
  bool over = false;
  PP_RETURN_IF_ERROR(sum.Test(&over));
  if (!over) return {};
  *moved = true;
  over_.store(asked, std::memory_order_release);
  args_.compute_bell->Ring();
  return {};
}

}  // namespace pp
