// Which communicator carries what, and what that makes of a device's list: each communicator is one
// stream on each of its devices, and a stream does one thing after the other.
//
//   device 0, list:   SEND_act m0 to d1   RECV_grad m0 from d1   SEND_act m1 to d1
//   one for all       ──SEND_act m0───────RECV_grad m0───────────SEND_act m1──────
//   one a direction   ──SEND_act m0──────────────────────────────SEND_act m1──────
//                     ────────────────────RECV_grad m0────────────────────────────
//
// Operations between ncclGroupStart and ncclGroupEnd are one item of their stream: they start
// together, in any order, and the item is over when all of them are.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "schema/nccl/traffic.h"

namespace pp {

// How messages share communicators, the coarsest first. Collectives have one for each set of
// devices that meet: NCCL gives no choice there.
enum class Communicators : uint8_t { kAll, kPair, kDirection, kKind };

struct CommunicatorsInfo {
  Communicators communicators;
  std::string_view name;     // "pair"
  std::string_view meaning;  // "one per pair of devices"
};
std::span<const CommunicatorsInfo> AllCommunicators();
const CommunicatorsInfo& Info(Communicators communicators);

struct Assignment {
  Communicators communicators = Communicators::kAll;
  std::vector<int32_t> of_flow;  // flow -> number of its communicator
  int messages = 0;              // communicators that carry messages; theirs are the first numbers
  int collectives = 0;           // and the others
};
Assignment Assign(const Traffic& traffic, Communicators communicators);

// What stands between ncclGroupStart and ncclGroupEnd: nothing, or messages between which no other
// instruction stands.
enum class Groups : uint8_t { kNone, kAdjacent };

struct Stream {
  int32_t device;
  std::vector<int32_t> ends;    // in list order
  std::vector<int32_t> begins;  // item -> its first one in `ends`; and the number of ends
  size_t Items() const { return begins.size() - 1; }
  std::span<const int32_t> Item(size_t item) const {
    return {ends.data() + begins[item], ends.data() + begins[item + 1]};
  }
};

struct Streams {
  std::vector<Stream> all;
  std::vector<std::vector<int32_t>> of_device;  // device -> its streams
  // The most that one device has: as many kernels may want to run on it at once.
  int MostOnADevice() const;
};
Streams MakeStreams(const Traffic& traffic, const Assignment& assignment, Groups groups);

}  // namespace pp
