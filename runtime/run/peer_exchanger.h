// The collective operations of a rank's tensor-parallel peers (runtime/device/peers.h).
//
// The compute thread asks and waits; the communication thread carries them out, as it does with
// messages and reductions, so that all of them progress concurrently.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "runtime/device/peers.h"
#include "runtime/plan/collective.h"
#include "runtime/plan/device_waits.h"

namespace pp {

class PeerExchanger : public Peers {
 public:
  struct Args {
    Group group;                     // in the order of their indices
    std::vector<PeerExchange> all;   // all kinds of exchanges
    std::byte* exchange = nullptr;   // StageLayout::exchange
    int64_t piece = kExchangePiece;  // MostExchangePiece
    Transport* transport = nullptr;
    Device* device = nullptr;
    Bell* compute_bell = nullptr;             // rung when one is over
    const std::atomic<bool>* stop = nullptr;  // set: nobody waits any more
  };
  explicit PeerExchanger(Args args);

  void Start(const PeerExchange& what, void* data) override;
  void Wait() override;
  bool stopped() const override { return args_.stop->load(); }

  // The communication thread: does what can be done now.
  Status Advance(bool* moved);
  // Any thread: something was asked for, and is neither over nor submitted to a stream.
  bool under_way() const { return asked_.load() != over_.load(); }
  // Any thread: the compute thread sleeps in Wait.
  bool waiting() const { return waiting_.load(std::memory_order_relaxed); }
  // When both threads have ended, and the device: seconds that the compute thread, or, where there
  // is a stream, the compute queue has waited within instructions.
  double waited() {
    waits_.Count();
    return waited_;
  }

 private:
  // So many may be in the stream, which has room for far more.
  static constexpr int64_t kMostAhead = DeviceWaits::kMost;

  const Args args_;
  Queue* stream_ = nullptr;  // of all of them; null: the communication thread advances them
  std::map<PeerExchange, std::unique_ptr<RunningCollective>> collectives_;
  // The last request.
  std::byte* data_ = nullptr;
  PeerExchange what_;
  Ticket made_ = 0;               // what it is of
  Ticket ends_[kMostAhead] = {};  // in the stream, by number
  std::atomic<int64_t> asked_{0}, over_{0};
  int64_t begun_ = 0;     // the communication thread's
  int64_t followed_ = 0;  // the compute thread's: the last one that its queue goes on after
  DeviceWaits waits_;     // the same
  std::atomic<bool> waiting_{false};
  double waited_ = 0;
};

}  // namespace pp
