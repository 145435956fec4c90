// Messages between ranks whose memory is on devices that the transport cannot access: through
// pinned memory of both hosts, piece by piece, so that one is copied while the previous one is on
// its way.
//
//   send   device -> pinned -> inner transport          two pieces per port
//   recv   inner transport -> pinned -> device
//
// Both ends cut a message into the same pieces. Control messages are in host memory, and pass
// unchanged.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/transport.h"
#include "runtime/device/cuda/cuda_queue.h"

namespace pp {

class StagedTransport : public Transport {
 public:
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;

  // The queues are used by this transport only; they and the inner transport outlive it.
  struct Args {
    Transport* inner = nullptr;
    CudaDriver* driver = nullptr;
    CudaQueue *out = nullptr, *in = nullptr;  // from the device, and to it
  };
  explicit StagedTransport(const Args& args);

  Status Start(const Port& port, void* data, int64_t bytes) override;
  Status Test(const Port& port, bool* over) override;
  bool polls() const override { return args_.inner->polls(); }
  double wake_at() const override { return args_.inner->wake_at(); }
  void Settle(double) override {}  // its copies end by themselves

 private:
  static constexpr int kBuffers = 2;
  struct Transfer {
    std::byte* pinned = nullptr;  // kBuffers of kPieceBytes
    std::byte* data = nullptr;
    int64_t bytes = 0, pieces = 0;
    int64_t copied = 0, moved = 0;  // pieces, so far; one of them may be under way
    bool moving = false;            // a transfer is under way
    Ticket tickets[kBuffers] = {};  // of the last copy from or to each buffer

    std::byte* Buffer(int64_t piece) const { return pinned + piece % kBuffers * kPieceBytes; }
    int64_t BytesOf(int64_t piece) const {
      return std::min(kPieceBytes, bytes - piece * kPieceBytes);
    }
  };
  Status Send(const Port& port, Transfer* transfer);
  Status Receive(const Port& port, Transfer* transfer);
  Status Move(const Port& port, Transfer* transfer);

  const Args args_;
  std::vector<Transfer> transfers_;  // by port
};

}  // namespace pp
