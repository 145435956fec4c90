// How bytes get from one rank to another.
//
// A rank has one end of the transport, with ports: a direction, a channel and a peer. A port
// carries one transfer at a time, and what one rank sends through (channel, peer) arrives in order.
// Nothing is buffered: a send is over when its receive has taken the bytes, so that a program that
// hangs on one transport hangs on every one.
//
// One thread of the rank calls everything here. Nothing blocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/bell.h"
#include "schema/base/status.h"

namespace pp {

enum class Way : uint8_t { kSend, kRecv };
// Between the same two ranks, transfers through different channels are not ordered: messages, with
// one channel for each kind of value, reductions, exchanges of tensor-parallel peers, the hosts'
// control messages, and the phases after the last step, when a failed run may have left all others
// busy.
enum class Channel : uint8_t { kAct, kGrad, kReduce, kPeers, kControl, kPhase };
inline constexpr int kChannels = 6;

struct Port {
  Way way;
  Channel channel;
  int peer;
  bool operator==(const Port&) const = default;
};

struct TransferArgs {
  Port port;
  void* data = nullptr;
  int64_t bytes = 0;
};

// Copies between memories that the host cannot access, in order, some time later.
class Copier {
 public:
  virtual ~Copier() = default;
  // Returns a number to ask about it with.
  virtual int64_t Copy(void* to, const void* from, int64_t bytes) = 0;
  virtual bool Done(int64_t copy) const = 0;
};

class Queue;

class Transport {
 public:
  Transport(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
  // With a bell that others ring directly: of another process, or of an inner transport.
  Transport(int rank, int ranks, BellWords* bell) : rank_(rank), ranks_(ranks), bell_(bell) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Sets up what messages need, together with the other ranks: called repeatedly until it is over,
  // before the first message starts. `doing`: what is under way, for whoever waits.
  virtual Status Connect(bool* over, std::string* /*doing*/) {
    *over = true;
    return {};
  }

  // Takes the memory that sends through these ports need, beside that of a rank's own buffers:
  // before the first step, as later there may be none. Failed: there is none.
  virtual Status Reserve(std::span<const Port> /*sends*/) { return {}; }

  // Starts to send from, or receive into, `data`. Both ends pass the same number of bytes, at least
  // 0. REQUIRES: port.peer != rank(); the port is free.
  virtual Status Start(const Port& port, void* data, int64_t bytes) = 0;

  // Starts transfers through different ports of one channel that progress together: none waits for
  // another to finish. Both ends of a transfer must group it with others in such a call.
  virtual Status StartTogether(std::span<const TransferArgs> transfers) {
    for (const TransferArgs& transfer : transfers)
      PP_RETURN_IF_ERROR(Start(transfer.port, transfer.data, transfer.bytes));
    return {};
  }

  // The lane of a message's port. The ports of a lane carry one transfer at a time; all ranks start
  // them in a compatible order. Here: one lane per direction and peer.
  virtual int LaneOf(const Port& port) const {
    return IndexOf({port.way, Channel::kAct, port.peer});
  }

  // Whether the port's transfer is over; the port is then free again.
  virtual Status Test(const Port& port, bool* over) = 0;

  // The queue of this rank's device whose work the port's transfers are, in the order of their
  // starts: a transfer begins after what the queue was given before it, the next one may be started
  // before it is over, and the queue's tickets tell when it is. Null: only Test does.
  virtual Queue* QueueOf(const Port& /*port*/) const { return nullptr; }

  // Failed: something has gone wrong that no transfer reports.
  virtual Status Check() { return {}; }

  // From now on `copier`, which outlives this rank's transfers, copies what the rank sends and
  // receives, except for control messages. False: this transport does not work with a single copy.
  virtual bool CopyBy(Copier* /*copier*/) { return false; }

  // True: transfers advance only while somebody tests. False: the bell rings when a
  // transfer of this rank is over, or can advance if its port is tested.
  virtual bool polls() const = 0;

  // When, on the steady clock, there is something to test although no bell rings.
  virtual double wake_at() const { return std::numeric_limits<double>::infinity(); }
  // How long the calling thread may sleep on its bell, at most `longest` (max(): forever).
  std::chrono::nanoseconds MaySleep(std::chrono::nanoseconds longest) const;

  // The peer's process has ended without having left. False: it has not, or nobody can tell.
  virtual bool HasDied(int /*peer*/) { return false; }

  // Every rank calls this once, when its run is over, and waits up to `seconds` for the others:
  // transfers that a failed run has left under way end somehow. Afterwards nothing accesses their
  // memory.
  virtual void Settle(double seconds) = 0;

  // Nobody waits any more for transfers from or into `buffers`, which live as long as they may
  // still be accessed. Afterwards only Settle may be called on the transport.
  void Abandon(std::shared_ptr<void> buffers) { abandoned_.push_back(std::move(buffers)); }
  // Failed: something has been abandoned.
  Status CheckUsable() const;

  // This rank has waited for the peer in vain: its process is stopped, or its host out of reach.
  void Blame(int peer, const Status& error) { blamed_.push_back({peer, error.message()}); }
  // Whether that is what an error says.
  bool Blames(int peer, const Status& error) const;

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
  std::vector<std::pair<int, std::string>> blamed_;
};

}  // namespace pp
