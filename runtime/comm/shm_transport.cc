#include "runtime/comm/shm_transport.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include "runtime/comm/clock.h"
#include "runtime/comm/shm_neighbour.h"

namespace pp {
namespace {

// How often it looks whether the other processes live, and how long it sleeps in between.
constexpr std::chrono::milliseconds kLookTime{100};
// A transfer that fits in one piece is not worth a system call. Reading more than kDirectStep in
// one call would keep the receiver from its other ports.
constexpr int64_t kPieceBytes = ShmChannel::kPieceBytes, kDirectStep = 256 << 10;

class ShmTransport : public Transport {
 public:
  ShmTransport(ShmTransportArgs args, int me)
      : Transport(args.rank, args.ranks, args.segment->BellOf(me)),
        segment_(std::move(args.segment)),
        copy_(args.copy),
        me_(me),
        members_(std::move(args.members)),
        member_of_(args.ranks, -1),
        died_(members_.size()),
        transfers_(port_count()) {
    for (size_t i = 0; i < members_.size(); ++i) member_of_[members_[i]] = static_cast<int>(i);
    for (int member = 0; member < segment_->members(); ++member)
      neighbours_.emplace_back(&segment_->MemberAt(member));
    // If a system lets only a parent read a process's memory, this asks for more. It may fail.
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    PP_CHECK(getrandom(&nonce_, sizeof nonce_, 0) == sizeof nonce_);
    ShmMember& mine = segment_->MemberAt(me);
    mine.nonce = nonce_;
    mine.nonce_at = &nonce_;
    mine.process.store(getpid());
  }

  ~ShmTransport() override { segment_->MemberAt(me_).left.store(true); }

  Status Reserve(std::span<const Port> sends) override {
    for (const Port& port : sends) {
      bool& reserved = transfers_[IndexOf(port)].reserved;
      if (reserved) continue;
      PP_RETURN_IF_ERROR(segment_->Reserve(port.channel, me_, member_of_[port.peer]));
      reserved = true;
    }
    return {};
  }

  Status Start(const Port& port, void* data, int64_t bytes) override {
    Transfer& transfer = transfers_[IndexOf(port)];
    PP_CHECK(member_of_[port.peer] >= 0);
    if (lost_) return Lost();
    PP_CHECK(!transfer.busy);
    if (port.way == Way::kSend) PP_RETURN_IF_ERROR(Reserve({&port, 1}));
    transfer.data = static_cast<char*>(data);
    transfer.bytes = bytes;
    transfer.done = 0;
    transfer.shown = false;
    transfer.busy = true;
    transfer.over = false;
    PP_RETURN_IF_ERROR(Advance(port, &transfer));
    if (transfer.over) bell().Ring();
    return {};
  }

  Status Test(const Port& port, bool* over) override {
    Transfer& transfer = transfers_[IndexOf(port)];
    if (lost_) return Lost();
    PP_CHECK(transfer.busy);
    PP_RETURN_IF_ERROR(Look());
    // Before the look at what the peer did last.
    const bool alone = IsGone(member_of_[port.peer]);
    if (!transfer.over) PP_RETURN_IF_ERROR(Advance(port, &transfer));
    *over = transfer.over;
    if (*over) transfer.busy = false;
    return alone && !*over ? Gone(member_of_[port.peer]) : Status();
  }

  bool polls() const override { return false; }

  bool HasDied(int peer) override {
    const int member = member_of_[peer];
    return member >= 0 && member != me_ && neighbours_[member].HasDied();
  }

  // At the first end everybody has stopped sending and receiving, and each empties the channels
  // that lead to it; at the second all are empty.
  void Settle(double seconds) override {
    if (!Barrier(0, seconds)) return;
    for (Transfer& transfer : transfers_) transfer.busy = false;
    for (int channel = 0; channel < kChannels; ++channel)
      for (int to = 0; to < segment_->members(); ++to) {
        ShmChannel& empty = segment_->ChannelOf(static_cast<Channel>(channel), me_, to);
        empty.sender.put.store(0);
        empty.receiver.taken.store(0);
        empty.receiver.refused.store(-1);
      }
    Barrier(1, seconds);
  }

 private:
  struct Transfer {
    char* data = nullptr;
    int64_t bytes = 0;
    int64_t done = 0;    // bytes that are copied
    bool shown = false;  // the send, to its receiver: an empty transfer also counts as a piece
    bool busy = false;   // until a test has reported that it is over
    bool over = false;
    bool reserved = false;

    int64_t left() const { return bytes - done; }
  };

  // Now and then, whether all processes live. Failed, once for each that has died, whatever is
  // being tested: a rank that expects nothing from it tells those on other hosts that do.
  Status Look() {
    const double now = SteadySeconds();
    if (now - looked_at_ < std::chrono::duration<double>(kLookTime).count()) return {};
    looked_at_ = now;
    for (int member = 0; member < segment_->members(); ++member) {
      if (member == me_ || died_[member] || !neighbours_[member].HasDied()) continue;
      died_[member] = true;
      return Gone(member);
    }
    return {};
  }

  bool IsGone(int member) const { return died_[member] || neighbours_[member].HasLeft(); }

  Status Gone(int member) const {
    return Status::Failed(
        fmt::format("rank {}: rank {}'s process has ended", rank(), members_[member]));
  }

  Status Advance(const Port& port, Transfer* transfer) {
    return port.way == Way::kSend ? Put(port, transfer) : Take(port, transfer);
  }

  Status Put(const Port& port, Transfer* transfer) {
    const int to = member_of_[port.peer];
    ShmChannel& channel = segment_->ChannelOf(port.channel, me_, to);
    uint64_t put = channel.sender.put.load(std::memory_order_relaxed);
    const uint64_t taken = channel.receiver.taken.load(std::memory_order_acquire);
    // Read after `taken`: a receiver says that it cannot read before it takes what was shown.
    const bool direct = transfer->bytes > kPieceBytes && !channel.receiver.in_pieces.load();
    while ((!transfer->shown || (!direct && transfer->left() > 0)) &&
           put < taken + ShmChannel::kPieces) {
      const uint64_t slot = put % ShmChannel::kPieces;
      channel.sender.bytes[slot] = transfer->bytes;
      channel.sender.from[slot] = direct ? transfer->data : nullptr;
      if (!direct) {
        const int64_t bytes = std::min(kPieceBytes, transfer->left());
        if (bytes > 0)
          std::memcpy(segment_->PieceOf(port.channel, me_, to, put),
                      transfer->data + transfer->done, bytes);
        transfer->done += bytes;
      }
      transfer->shown = true;
      channel.sender.put.store(++put, std::memory_order_release);
      Bell::Ring(segment_->BellOf(to));
    }
    const int64_t refused = channel.receiver.refused.load(std::memory_order_acquire);
    if (refused >= 0) return Mismatch(port, transfer->bytes, refused);
    transfer->over = taken == put && (direct || transfer->left() == 0);
    return {};
  }

  Status Take(const Port& port, Transfer* transfer) {
    const int from = member_of_[port.peer];
    ShmChannel& channel = segment_->ChannelOf(port.channel, from, me_);
    uint64_t taken = channel.receiver.taken.load(std::memory_order_relaxed);
    const uint64_t put = channel.sender.put.load(std::memory_order_acquire);
    while (!transfer->over && taken < put) {
      const uint64_t slot = taken % ShmChannel::kPieces;
      const int64_t sent = channel.sender.bytes[slot];
      if (sent != transfer->bytes) {
        channel.receiver.refused.store(transfer->bytes, std::memory_order_release);
        Bell::Ring(segment_->BellOf(from));
        return Mismatch(port, transfer->bytes, sent);
      }
      const char* source = channel.sender.from[slot];
      if (source == nullptr) {
        const int64_t bytes = std::min(kPieceBytes, transfer->left());
        if (bytes > 0)
          std::memcpy(transfer->data + transfer->done,
                      segment_->PieceOf(port.channel, from, me_, taken), bytes);
        transfer->done += bytes;
      } else if (!Read(from, source, transfer)) {
        channel.receiver.in_pieces.store(true);
        transfer->done = 0;
      } else if (transfer->left() > 0) {
        bell().Ring();
        return {};
      }
      transfer->over = transfer->left() == 0;
      channel.receiver.taken.store(++taken, std::memory_order_release);
      Bell::Ring(segment_->BellOf(from));
    }
    return {};
  }

  // The next bytes of a transfer that begins at `source` in another process. False: this process is
  // not allowed to read there.
  bool Read(int member, const char* source, Transfer* transfer) {
    if (copy_ == ShmCopy::kInPieces) return false;
    const int64_t copied =
        neighbours_[member].Read(source + transfer->done, transfer->data + transfer->done,
                                 std::min(kDirectStep, transfer->left()));
    if (copied <= 0) return false;
    transfer->done += copied;
    return true;
  }

  Status Mismatch(const Port& port, int64_t mine, int64_t theirs) const {
    const bool send = port.way == Way::kSend;
    return Status::Failed(
        fmt::format("rank {}: {} {} bytes {} rank {}, which {} {} (the same plan "
                    "on all ranks)",
                    rank(), send ? "sends" : "expects", mine, send ? "to" : "from", port.peer,
                    send ? "expects" : "sends", theirs));
  }

  Status Lost() const {
    return Status::Failed(
        fmt::format("rank {}: the ranks of this host did not end together", rank()));
  }

  bool Barrier(int n, double patience) {
    AwakeClock clock;
    std::atomic<int>& arrived = segment_->ArrivedAt(n);
    arrived.fetch_add(1);
    for (int member = 0; member < segment_->members(); ++member)
      Bell::Ring(segment_->BellOf(member));
    while (true) {
      const uint64_t seen = bell().rings();
      if (arrived.load() == segment_->members()) return true;
      patience -= clock.Lap();
      if (patience <= 0 || !Look().ok() || std::count(died_.begin(), died_.end(), true) > 0) break;
      bell().WaitFor(seen, kLookTime);
    }
    lost_ = true;
    return false;
  }

  const std::shared_ptr<ShmSegment> segment_;
  const ShmCopy copy_;
  const int me_;                          // index among the members
  const std::vector<int> members_;        // their ranks
  std::vector<int> member_of_;            // rank -> member; -1: on another host
  uint64_t nonce_ = 0;                    // see ShmMember
  std::vector<ShmNeighbour> neighbours_;  // by member; one is this process
  std::vector<bool> died_;                // by member; as reported
  double looked_at_ = 0;
  std::vector<Transfer> transfers_;
  bool lost_ = false;
};

}  // namespace

std::unique_ptr<Transport> MakeShmTransport(ShmTransportArgs args) {
  const auto me = std::find(args.members.begin(), args.members.end(), args.rank);
  PP_CHECK(me != args.members.end());
  const int member = static_cast<int>(me - args.members.begin());
  return std::make_unique<ShmTransport>(std::move(args), member);
}

std::unique_ptr<Transport> MakeShmTransport(std::shared_ptr<ShmSegment> segment, int rank,
                                            ShmCopy copy) {
  std::vector<int> members(segment->members());
  std::iota(members.begin(), members.end(), 0);
  const int ranks = segment->members();
  return MakeShmTransport({std::move(segment), rank, ranks, std::move(members), copy});
}

}  // namespace pp
