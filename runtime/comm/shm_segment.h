// The memory that the ranks of one host share: the state of each transfer, each rank's bell, and
// for each (channel, from, to) a few pieces through which the bytes go.
//
//   | head | members | channels | pieces of (0,0,1) | pieces of (0,0,2) | ...
//
// It is a POSIX shared-memory object. The first rank creates it, the others open it by its name,
// and when all have it open the name is removed, so that nothing is left over however the ranks
// end. The pieces take memory when the sender reserves its channel.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/comm/transport.h"
#include "schema/base/status.h"

namespace pp {

// One (channel, from, to). The sender puts pieces in, the receiver takes them out; both count
// from the beginning of the run. INVARIANT: put - kPieces <= taken <= put.
struct ShmChannel {
  static constexpr int64_t kPieces = 2;  // so that one is filled while the other is emptied
  static constexpr int64_t kPieceBytes = 128 << 10;

  struct alignas(64) Sender {
    std::atomic<uint64_t> put{0};
    int64_t bytes[kPieces] = {};     // of the whole transfer that a piece belongs to
    const char* from[kPieces] = {};  // where the transfer lies in the sender; null: in pieces
  } sender;
  struct alignas(64) Receiver {
    std::atomic<uint64_t> taken{0};
    std::atomic<int64_t> refused{-1};    // the bytes of a receive whose send has a different size
    std::atomic<bool> in_pieces{false};  // the receiver cannot read the sender's memory
  } receiver;
};

// What a member shows the others.
struct alignas(64) ShmMember {
  BellWords bell;
  std::atomic<int> process{0};     // its id, in its own namespace; stored last. 0: has not joined
  std::atomic<bool> left{false};   // takes no part any more; its process may end
  uint64_t nonce = 0;              // random,
  const void* nonce_at = nullptr;  // and where the process has the same number in its memory
};

class ShmSegment {
 public:
  // For `members` ranks, under a unique name. Failed: no memory.
  static Result<std::shared_ptr<ShmSegment>> Create(int members);
  static Result<std::shared_ptr<ShmSegment>> Open(const std::string& name);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  // From now on nobody can open it. Its creator does so at the latest on destruction.
  void Unlink();
  const std::string& name() const { return name_; }

  int members() const { return head()->members; }
  ShmMember& MemberAt(int member) const;
  BellWords* BellOf(int member) const { return &MemberAt(member).bell; }
  ShmChannel& ChannelOf(Channel channel, int from, int to) const;
  char* PieceOf(Channel channel, int from, int to, uint64_t number) const;
  // Takes the memory of the channel's pieces; the sender, before it first puts one in. Failed:
  // there is none.
  Status Reserve(Channel channel, int from, int to) const;
  // How many members have reached the n-th end, n = 0 or 1 (see ShmTransport::Settle).
  std::atomic<int>& ArrivedAt(int n) const { return head()->arrived[n]; }

 private:
  struct Head {
    int members;
    std::atomic<int> arrived[2];
  };
  struct Layout {
    explicit Layout(int count);
    int64_t members, channels, pieces, bytes;
  };
  ShmSegment(std::string name, int file) : name_(std::move(name)), file_(file) {}
  Status Map(int members);
  Head* head() const { return reinterpret_cast<Head*>(memory_); }
  int64_t IndexOf(Channel channel, int from, int to) const {
    return (static_cast<int64_t>(channel) * members() + from) * members() + to;
  }

  std::string name_;
  const int file_;
  bool linked_ = false;
  char* memory_ = nullptr;
  Layout layout_{0};
};

}  // namespace pp
