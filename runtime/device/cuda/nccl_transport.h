// Messages between GPUs of several processes, by NCCL; control messages go through the inner
// transport.
//
// A communicator is one stream: transfers started through its ports are put there in this order,
// each call as a group of its own, and a transfer is over when the stream has passed its group. So
// a transfer that waits for its partner holds up those queued behind it, as modelled by the plan's
// proof (schema/nccl/prove.h).
//
// Connect creates the communicators one after the other, in the order that all ranks share, and
// sends a byte through each port: NCCL connects two ranks at their first message, which takes long.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/transport.h"
#include "runtime/device/cuda/cuda_queue.h"
#include "runtime/device/cuda/nccl.h"

namespace pp {

class NcclTransport : public Transport {
 public:
  // What is pointed to must outlive the transport.
  struct Args {
    Transport* inner = nullptr;
    CudaDriver* driver = nullptr;
    Nccl* nccl = nullptr;
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
  bool polls() const override { return args_.inner->polls(); }
  double wake_at() const override;
  // Ends the communicators, without the other ranks.
  void Settle(double seconds) override;

 private:
  static constexpr int kNoLine = -1;
  enum class Stage : uint8_t { kId, kCreate, kFirstBytes };

  // A communicator and its stream.
  struct Line {
    Nccl::Communicator communicator = nullptr;
    std::deque<std::vector<TransferArgs>> groups;  // not in the stream yet
    bool enqueuing = false;                        // the first of them is being enqueued
    double watched_at = 0;
  };
  struct PortState {
    int line = kNoLine;
    bool waits = false;  // in Line::groups
    Ticket ticket = 0;
  };

  Status ShareId(bool* over);
  Status Create(bool* over);
  void SendFirstBytes();
  Status Advance(int line);
  int MemberOf(int line, int rank) const;
  Status Watch(int number);
  Status In(int line, const Status& status) const;

  Args args_;
  std::vector<Line> lines_;       // those that are created
  std::vector<PortState> ports_;  // by port
  // Of the communicator that is being created.
  Stage stage_ = Stage::kId;
  Nccl::Id id_{};
  std::vector<Port> id_ports_;  // of `inner`, under way
  bool sharing_ = false, making_ = false;
};

}  // namespace pp
