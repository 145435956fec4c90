// Which communicator carries what, and what that means for a device's list: each communicator is
// one stream on each of its devices, and a stream does one thing after the other.
//
//   device 0, list:   SEND_act m0 to d1   RECV_grad m0 from d1   SEND_act m1 to d1
//   one for all       ──SEND_act m0───────RECV_grad m0───────────SEND_act m1──────
//   per direction     ──SEND_act m0──────────────────────────────SEND_act m1──────
//                     ────────────────────RECV_grad m0────────────────────────────
//
// Operations between ncclGroupStart and ncclGroupEnd are one item of their stream: they start
// together, in any order, and the item is over when all of them are.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schema/nccl/traffic.h"

namespace pp::nccl {

// How messages share communicators, the coarsest first. Collectives have one for each set of
// devices that meet: NCCL gives no choice there.
enum class Sharing : uint8_t { kAll, kPair, kDirection, kKind };

struct SharingInfo {
  Sharing sharing;
  std::string_view name;     // "pair"
  std::string_view meaning;  // "for a pair of devices": the scope of one communicator
};
std::span<const SharingInfo> AllSharings();
const SharingInfo& Info(Sharing sharing);

// The same for all messages, or finer for those of some directions.
struct Sharings {
  Sharing most = Sharing::kAll;
  std::map<std::pair<int32_t, int32_t>, Sharing> finer;  // of the direction (from, to)
  Sharing Of(const Flow& flow) const;
  bool operator==(const Sharings&) const = default;
};

// Messages with one key share a communicator.
std::array<int32_t, 4> KeyOf(const Flow& message, Sharing sharing);

struct Communicator {
  std::vector<int32_t> flows;
  Sharing sharing = Sharing::kAll;  // of messages
  bool collective = false;
};
// A flow's number is its index in Traffic::flows.
struct Assignment {
  std::vector<Communicator> communicators;
  std::vector<int32_t> of_flow;  // flow -> number of its communicator
  int Messages() const;          // communicators that carry messages
  int Collectives() const { return static_cast<int>(communicators.size()) - Messages(); }
};
Assignment Assign(const Traffic& traffic, const Sharings& sharings);

// Of those that carry messages: "6 communicators, each for one direction of a pair of devices".
std::string ToText(const Assignment& assignment);

// What is between ncclGroupStart and ncclGroupEnd: nothing, or messages with no other instruction
// between them.
enum class Groups : uint8_t { kNone, kAdjacent };

struct Stream {
  int32_t device, communicator;
  std::vector<int32_t> ends;    // in list order
  std::vector<int32_t> begins;  // item -> its first one in `ends`; finally the number of ends
  size_t Items() const { return begins.size() - 1; }
  std::span<const int32_t> Item(size_t item) const {
    return {ends.data() + begins[item], ends.data() + begins[item + 1]};
  }
};

struct Streams {
  std::vector<Stream> all;
  std::vector<std::vector<int32_t>> of_device;  // device -> its streams
  // The most streams of one device: as many kernels may want to run on it concurrently.
  int MostOnADevice() const;
};
Streams MakeStreams(const Traffic& traffic, const Assignment& assignment, Groups groups);

}  // namespace pp::nccl
