#include "runtime/run/peer_exchanger.h"

#include <algorithm>
#include <utility>

#include "runtime/comm/clock.h"

namespace pp {
namespace {

CollectiveKind KindOf(PeerWork work) {
  switch (work) {
    case PeerWork::kSum:
      return CollectiveKind::kAllReduce;
    case PeerWork::kScatter:
      return CollectiveKind::kReduceScatter;
    case PeerWork::kGather:
      return CollectiveKind::kAllGather;
  }
  PP_CHECK(false);
}

}  // namespace

PeerExchanger::PeerExchanger(Args args)
    : args_(std::move(args)),
      waits_([this](int, int64_t, double begin, double end) { waited_ += end - begin; }) {
  const auto members = static_cast<int64_t>(args_.group.size());
  for (const PeerExchange& exchange : args_.all) {
    const int64_t each = BytesOf(exchange.dtype), bytes = exchange.numbers * each;
    // For a sum that all get, it does not matter who takes which part of it.
    const int64_t align = exchange.work == PeerWork::kSum ? kAlign : each;
    // Its place is given each time, from the beginning of the arena.
    CollectiveArgs args{.kind = KindOf(exchange.work),
                        .channel = Channel::kPeers,
                        .group = args_.group,
                        .rank = args_.transport->rank(),
                        .dtype = exchange.dtype,
                        .shards = EqualShards(bytes, members, align),
                        .value = args_.device->at(0),
                        .exchange = args_.exchange,
                        .piece = args_.piece};
    auto& made = collectives_[exchange];
    made = std::make_unique<RunningCollective>(std::move(args), args_.transport,
                                               &args_.device->reduce());
    stream_ = made->stream();
  }
}

void PeerExchanger::Start(const PeerExchange& what, void* data) {
  if (args_.stop->load()) return;  // the last one may never be over
  PP_CHECK(collectives_.contains(what) && over_.load() == asked_.load());
  data_ = static_cast<std::byte*>(data);
  what_ = what;
  made_ = args_.device->compute().Mark();
  asked_.fetch_add(1, std::memory_order_release);
  args_.transport->bell().Ring();
}

void PeerExchanger::Wait() {
  const auto over = [&] {
    return over_.load(std::memory_order_acquire) == asked_.load() || args_.stop->load();
  };
  if (!over()) {
    const double begin = SteadySeconds();
    waiting_.store(true, std::memory_order_relaxed);
    args_.transport->bell().Ring();  // it can poll more often now
    args_.compute_bell->WaitUntil(over);
    waiting_.store(false, std::memory_order_relaxed);
    if (stream_ == nullptr) waited_ += SteadySeconds() - begin;
  }
  const int64_t asked = asked_.load();
  if (stream_ == nullptr || args_.stop->load() || std::exchange(followed_, asked) == asked) return;
  waits_.Add(0, asked, &args_.device->compute(), *stream_, ends_[asked % kMostAhead],
             args_.compute_bell, *args_.stop);
}

Status PeerExchanger::Advance(bool* moved) {
  const int64_t asked = asked_.load(std::memory_order_acquire);
  if (over_.load(std::memory_order_relaxed) == asked) return {};
  RunningCollective& collective = *collectives_.at(what_);
  if (stream_ != nullptr) {
    Ticket& end = ends_[asked % kMostAhead];
    if (!stream_->Done(end)) return {};
    stream_->Follow(args_.device->compute(), made_);
    PP_RETURN_IF_ERROR(collective.Start(data_ - args_.device->at(0)));
    end = stream_->Mark();
    *moved = true;
    over_.store(asked, std::memory_order_release);
    args_.compute_bell->Ring();
    return {};
  }
  if (begun_ != asked) {
    if (!args_.device->compute().Done(made_)) return {};
    PP_RETURN_IF_ERROR(collective.Start(data_ - args_.device->at(0)));
    begun_ = asked;
    *moved = true;
  }
  bool over = false;
  PP_RETURN_IF_ERROR(collective.Test(&over));
  if (!over) return {};
  *moved = true;
  over_.store(asked, std::memory_order_release);
  args_.compute_bell->Ring();
  return {};
}

}  // namespace pp
