// How bytes get from one rank to another.
//
// A rank has one end of the transport, with ports: a direction, a channel and a peer. A
// port carries one transfer at a time, and what one rank sends through (channel, peer)
// arrives in order. Nothing is buffered: a send is over when its receive has taken the
// bytes, so that a program which hangs on one transport hangs on every one.
//
// One thread of the rank calls everything here. Nothing blocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/comm/bell.h"
#include "schema/status.h"

namespace pp {

enum class Way : uint8_t { kSend, kRecv };
// Of the same two ranks, what goes through different channels is not ordered.
enum class Channel : uint8_t { kMessage, kReduce, kControl, kPeers };
inline constexpr int kChannels = 4;

struct Port {
  Way way;
  Channel channel;
  int peer;
  bool operator==(const Port&) const = default;
};

class Transport {
 public:
  Transport(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  // With a bell that others ring directly: of another process, or of a transport inside.
  Transport(int rank, int ranks, BellWords* bell) : rank_(rank), ranks_(ranks), bell_(bell) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Starts to send from, or receive into, `data`. Both ends give the same number of bytes,
  // any number from 0. REQUIRES: port.peer != rank(); the port is free.
  virtual Status Start(const Port& port, void* data, int64_t bytes) = 0;

  // Whether the port's transfer is over; the port is then free again.
  virtual Status Test(const Port& port, bool* over) = 0;

  // True: transfers advance only while somebody tests. False: the bell rings when a
  // transfer of this rank is over, or can advance if its port is tested.
  virtual bool polls() const = 0;

  // When, on the steady clock, there is something to test for although no bell rings.
  virtual double wake_at() const { return std::numeric_limits<double>::infinity(); }
  // How long the calling thread may sleep on its bell, at most `longest` (max(): for ever).
  std::chrono::nanoseconds MaySleep(std::chrono::nanoseconds longest) const;

  // Every rank calls this once, when its run is over: transfers that a failed run has left
  // under way end somehow. Afterwards nothing touches the memory of any of them.
  virtual void Settle() = 0;

  // Nobody waits any more for transfers from or into `buffers`, which live as long as they may
  // still be touched. Afterwards the transport is good for Settle alone.
  void Abandon(std::shared_ptr<void> buffers) { abandoned_.push_back(std::move(buffers)); }
  // Failed: something has been abandoned.
  Status CheckUsable() const;

  // The bell that the calling thread sleeps on.
  Bell& bell() { return bell_; }

 protected:
  int IndexOf(const Port& port) const {
    return (static_cast<int>(port.channel) * 2 + static_cast<int>(port.way)) * ranks_ + port.peer;
  }
  int port_count() const { return kChannels * 2 * ranks_; }

 private:
  const int rank_;
  const int ranks_;
  Bell bell_;
  std::vector<std::shared_ptr<void>> abandoned_;
};

// Seconds on the steady clock.
double SteadySeconds();

// Carries one transfer to its end; for the times before and after the steps. Failed: the
// peer did not answer within `seconds`; then the transfer is abandoned.
Status Transfer(Transport& transport, const Port& port, void* data, int64_t bytes, double seconds);

}  // namespace pp
