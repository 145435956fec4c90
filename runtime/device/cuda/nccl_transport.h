// Messages between GPUs of several processes, by NCCL; control messages go through the inner
// transport.
//
// A communicator is one queue: transfers started through its ports are put into its stream in this
// order, each call as a group of its own, and a transfer is over when the stream has passed its
// group. So a transfer that waits for its partner holds up those queued behind it, as modelled by
// the plan's proof (schema/nccl/prove.h).
//
// Connect creates the communicators one after the other, in the order that all ranks share, each on
// a thread of its own, as NCCL waits there until all members have come; and sends a byte through
// each port: NCCL connects two ranks at their first message, which takes long. Later calls take
// microseconds, or else the communicators are ended.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/comm/links.h"
#include "runtime/device/cuda/call_guard.h"
#include "runtime/device/cuda/cuda_queue.h"
#include "runtime/device/cuda/nccl.h"

namespace pp {

class NcclTransport : public Transport {
 public:
  // What is pointed to must outlive the transport.
  struct Args {
    Transport* inner = nullptr;
    CudaDriver* driver = nullptr;
    std::shared_ptr<Nccl> nccl;  // also of a call that never returns
    std::vector<RankCommunicator> communicators;
    std::vector<CudaQueue*> queues;  // one per communicator
    std::byte* bytes = nullptr;      // on the device; one per port
  };
  explicit NcclTransport(Args args);
  ~NcclTransport() override { Settle(0); }

  Status Connect(bool* over, std::string* doing) override;
  // REQUIRES: connected, and a communicator has the port.
  Status Start(const Port& port, void* data, int64_t bytes) override;
  // REQUIRES: one communicator has all the ports.
  Status StartTogether(std::span<const TransferArgs> transfers) override;
  Status Test(const Port& port, bool* over) override;
  int LaneOf(const Port& port) const override;
  Queue* QueueOf(const Port& port) const override;
  // A rank that is gone leaves its partners waiting; NCCL reports it when asked.
  Status Check() override;
  bool polls() const override { return args_.inner->polls(); }
  double wake_at() const override;
  // Ends the communicators, without the other ranks.
  void Settle(double seconds) override;

 private:
  static constexpr int kNoLine = -1;
  enum class Stage : uint8_t { kId, kCreate };

  struct PortState {
    int line = kNoLine;  // a communicator and its queue
    Ticket ticket = 0;   // of its last transfer
  };
  // A communicator that is being made, on a thread of its own.
  struct Making {
    std::atomic<bool> begun{false}, over{false};
    Status status;
    std::mutex mutex;
    bool abandoned = false;  // whoever waited for it is gone, with the stream
    Nccl::Communicator communicator = nullptr;
  };

  int line() const { return static_cast<int>(made_.size()); }  // of the one being made
  Status ShareId(bool* over);
  Status Create(bool* over);
  std::vector<Nccl::Operation> FirstBytes() const;
  int MemberOf(int line, int rank) const;
  Status In(int line, const Status& status) const;

  Args args_;
  std::vector<Nccl::Communicator> made_;     // by line
  std::vector<PortState> ports_;             // by port
  std::vector<Nccl::Operation> operations_;  // of the transfers that start
  CallGuard guard_;
  double checked_at_ = 0;
  bool settled_ = false;
  // Of the communicator that is being made.
  Stage stage_ = Stage::kId;
  Nccl::Id id_{};
  std::vector<Port> id_ports_;  // of `inner`, under way
  bool sharing_ = false;
  std::shared_ptr<Making> making_;
};

}  // namespace pp
