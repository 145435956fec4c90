// Whoever comes second copies: the host immediately, or its device, and then both see when it is
// done.
#include "runtime/comm/in_process_transport.h"

#include <atomic>
#include <cstring>
#include <mutex>

namespace pp {
namespace {

// One (channel, from, to). INVARIANT: at most one of `source` and `target` waits.
struct Meeting {
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
      : ranks(ranks), meetings(static_cast<size_t>(kChannels) * ranks * ranks), bells(ranks) {}
  Meeting& At(Channel channel, int from, int to) {
    return meetings[(static_cast<size_t>(channel) * ranks + from) * ranks + to];
  }
  const int ranks;
  std::vector<Meeting> meetings;
  std::vector<Bell*> bells;
};

class InProcessTransport : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Hall> hall, int rank)
      : Transport(rank, hall->ranks), hall_(std::move(hall)) {
    hall_->bells[rank] = &bell();
  }

  Status Start(const Port& port, void* data, int64_t bytes) override {
    Meeting& meeting = MeetingOf(port);
    const bool send = port.way == Way::kSend;
    {
      std::lock_guard<std::mutex> lock(meeting.mutex);
      bool& partner_waits = send ? meeting.target_waits : meeting.source_waits;
      if (!partner_waits) {
        (send ? meeting.source_waits : meeting.target_waits) = true;
        (send ? meeting.source : meeting.target) = data;
        meeting.bytes = bytes;
        return {};
      }
      PP_CHECK(meeting.bytes == bytes);
      void* const target = send ? meeting.target : data;
      const void* const source = send ? data : meeting.source;
      meeting.copier = port.channel == Channel::kControl ? nullptr : copier_;
      if (meeting.copier != nullptr) {
        meeting.copy = meeting.copier->Copy(target, source, bytes);
      } else if (bytes > 0) {
        std::memcpy(target, source, bytes);
      }
      partner_waits = false;
      meeting.sent.store(true, std::memory_order_release);
      meeting.received.store(true, std::memory_order_release);
    }
    hall_->bells[port.peer]->Ring();
    bell().Ring();
    return {};
  }

  Status Test(const Port& port, bool* over) override {
    Meeting& meeting = MeetingOf(port);
    std::atomic<bool>& flag = port.way == Way::kSend ? meeting.sent : meeting.received;
    *over = flag.load(std::memory_order_acquire) &&
            (meeting.copier == nullptr || meeting.copier->Done(meeting.copy));
    if (!*over) return {};
    // The other rank's bell does not ring automatically when the copy is done.
    const bool tell = meeting.copier != nullptr;
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
  Meeting& MeetingOf(const Port& port) {
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
