// Whoever comes second copies: the host immediately, or its device, and then both see when it is
// done.
#include "runtime/comm/in_process_transport.h"

#include <atomic>
#include <cstring>
#include <mutex>

namespace pp {
namespace {

// One (channel, from, to). INVARIANT: at most one of `source` and `target` waits.
struct Rendezvous {
  std::mutex mutex;
  bool source_waits = false, target_waits = false;
  void* source = nullptr;
  void* target = nullptr;
  int64_t bytes = 0;  // of the one that waits
  // Both have come; and the copy, if it is still under way.
  std::atomic<bool> sent{false}, received{false};
  Copier* copier = nullptr;
  int64_t copy = 0;
};

struct Hall {
  explicit Hall(int ranks)
      : ranks(ranks), rendezvous(static_cast<size_t>(kChannels) * ranks * ranks), bells(ranks) {}
  Rendezvous& At(Channel channel, int from, int to) {
    return rendezvous[(static_cast<size_t>(channel) * ranks + from) * ranks + to];
  }
  const int ranks;
  std::vector<Rendezvous> rendezvous;
  std::vector<Bell*> bells;
};

class InProcessTransport : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Hall> hall, int rank)
      : Transport(rank, hall->ranks), hall_(std::move(hall)) {
    hall_->bells[rank] = &bell();
  }

  Status Start(const Port& port, void* data, int64_t bytes) override {
    Rendezvous& rendezvous = RendezvousOf(port);
    const bool send = port.way == Way::kSend;
    {
      std::lock_guard<std::mutex> lock(rendezvous.mutex);
      bool& partner_waits = send ? rendezvous.target_waits : rendezvous.source_waits;
      if (!partner_waits) {
        (send ? rendezvous.source_waits : rendezvous.target_waits) = true;
        (send ? rendezvous.source : rendezvous.target) = data;
        rendezvous.bytes = bytes;
        return {};
      }
      PP_CHECK(rendezvous.bytes == bytes);
      void* const target = send ? rendezvous.target : data;
      const void* const source = send ? data : rendezvous.source;
      rendezvous.copier = port.channel == Channel::kControl ? nullptr : copier_;
      if (rendezvous.copier != nullptr) {
        rendezvous.copy = rendezvous.copier->Copy(target, source, bytes);
      } else if (bytes > 0) {
        std::memcpy(target, source, bytes);
      }
      partner_waits = false;
      rendezvous.sent.store(true, std::memory_order_release);
      rendezvous.received.store(true, std::memory_order_release);
    }
    hall_->bells[port.peer]->Ring();
    bell().Ring();
    return {};
  }

  Status Test(const Port& port, bool* over) override {
    Rendezvous& rendezvous = RendezvousOf(port);
    std::atomic<bool>& flag = port.way == Way::kSend ? rendezvous.sent : rendezvous.received;
    *over = flag.load(std::memory_order_acquire) &&
            (rendezvous.copier == nullptr || rendezvous.copier->Done(rendezvous.copy));
    if (!*over) return {};
    // The other rank's bell does not ring automatically when the copy is done.
    const bool tell = rendezvous.copier != nullptr;
    flag.store(false, std::memory_order_relaxed);
    if (tell) hall_->bells[port.peer]->Ring();
    return {};
  }

  bool CopyBy(Copier* copier) override {
    copier_ = copier;
    return true;
  }

  bool polls() const override { return false; }

  // Memory is accessed only by a rank that calls Start.
  void Settle(double) override {}

 private:
  Rendezvous& RendezvousOf(const Port& port) {
    return port.way == Way::kSend ? hall_->At(port.channel, rank(), port.peer)
                                  : hall_->At(port.channel, port.peer, rank());
  }

  std::shared_ptr<Hall> hall_;
  Copier* copier_ = nullptr;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int ranks) {
  auto hall = std::make_shared<Hall>(ranks);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank)
    transports.push_back(std::make_unique<InProcessTransport>(hall, rank));
  return transports;
}

}  // namespace pp
