// What a group of ranks does together: an all-reduce, a reduce-scatter or an all-gather, by direct
// exchange between all members.
//
//   scatter   member j gets from every other member its part of j's shard, piece by piece,
//             and adds all parts in the group's order
//   gather    every member sends its own shard to all others
//
// Both proceed in rounds, the same for all members: in a round a member has one transfer to and one
// from every other one, or none if a shard has fewer pieces. Large shards are received into two
// halves of a slot, so that one piece is added while the next one arrives.
//
//   kReduceScatter = scatter     kAllGather = gather     kAllReduce = scatter, then gather
//
// So all members have the same bits, whatever arrives first, and a shard has the same bits in both
// reducing kinds. A member sends and receives (n-1)/n of the bytes in each half, which is the
// minimum.
//
// It advances in steps that never block, on the communication thread; the sums are the device's.
// Where transfers are work of a queue of the device (Transport::QueueOf), all of it is submitted to
// that queue at once, and the host has no part in it: receive, sum, gather.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/comm/transport.h"
#include "runtime/device/device.h"
#include "schema/semantics/buckets.h"
#include "schema/topology.h"

namespace pp {

enum class CollectiveKind : uint8_t { kAllReduce, kReduceScatter, kAllGather };

// Bytes from the beginning of the value.
struct ByteRange {
  int64_t begin = 0, bytes = 0;
  bool operator==(const ByteRange&) const = default;
};

// By member: `bytes` in total, cut at multiples of `align`.
std::vector<std::vector<ByteRange>> EqualShards(int64_t bytes, int64_t members, int64_t align);

// One member's part in a collective. All members must agree on: kind, group, shards.
struct CollectiveArgs {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Channel channel = Channel::kReduce;  // concurrent transfers have different ones
  Group group;
  int rank = 0;                                // of this member
  Dtype dtype = Dtype::kFp32;                  // of the elements that are added
  std::vector<std::vector<ByteRange>> shards;  // by member
  // Where the value lies, which can be a different place each time (Start). A member may bring a
  // second part of the same size, which is added to its first one and gets the result, too.
  std::byte* value = nullptr;
  std::byte* second = nullptr;
  // kAllReduce, kReduceScatter: space for the others' parts: members - 1 times min(piece, the
  // largest range of its own shard).
  std::byte* exchange = nullptr;
  int64_t piece = kExchangePiece;  // bytes at most; MostExchangePiece
};

class RunningCollective {
 public:
  // `queue` sums, unless transfers are work of another one. REQUIRES: `rank` is in the group.
  RunningCollective(CollectiveArgs args, Transport* transport, Queue* queue);

  // The queue that all of it is submitted to; null: the communication thread advances it.
  Queue* stream() const { return stream_; }

  // Begins. `offset` is added to the value's address. With a stream nothing else is to be done;
  // else REQUIRES: it is over, or new, and what it sends is computed.
  Status Start(int64_t offset);
  // Does what can be done now. REQUIRES: no stream.
  Status Test(bool* over);

 private:
  // One transfer of a round: of the value, or into a slot of the exchange.
  struct Move {
    Port port;
    ByteRange range;
    std::byte* slot = nullptr;
    bool under_way = false;
  };
  struct Round {
    std::vector<Move> moves;
    ByteRange sum;         // what is added after it, in the value; no bytes: nothing
    bool gathers = false;  // it sends what has been added
  };

  void AddScatter();
  void AddGather();
  std::byte* Slot(size_t member, size_t round) const;
  void SumWhole(std::span<const std::byte* const> parts, std::byte* out, std::byte* also = nullptr);
  void SumPiece(size_t round);
  bool MayStart(size_t round) const;
  Status StartRound();
  Status StartTransfers(size_t round);
  Status TestRound(bool* over);
  Status SubmitRounds();

  const CollectiveArgs args_;
  Transport* const transport_;
  Queue* stream_ = nullptr;
  Queue* queue_ = nullptr;
  size_t me_ = 0;      // in the group
  int64_t whole_ = 0;  // bytes of the value
  int64_t slot_ = 0;   // bytes of a slot of the exchange
  size_t halves_ = 1;  // halves of a slot
  std::vector<Round> rounds_;
  std::vector<const std::byte*> parts_[2];   // by half; what is added, in the group's order
  std::vector<const std::byte*> own_parts_;  // value and second
  std::vector<TransferArgs> transfers_;      // of the round that starts
  // Of the current run.
  std::byte* value_ = nullptr;
  size_t round_ = 0;
  bool started_ = false, copied_ = false, over_ = true;
  Ticket sum_ = 0;       // the last one
  Ticket sums_[2] = {};  // of each half
};

}  // namespace pp
