// In which order a device's operations proceed: each belongs to one stream of its device, and a
// stream does one thing after the other.
//
//   device 0, list:   SEND_act m0 to d1   RECV_grad m0 from d1   SEND_act m1 to d1
//   one for all       ──SEND_act m0───────RECV_grad m0───────────SEND_act m1──────
//   one per channel   ──SEND_act m0──────────────────────────────SEND_act m1──────
//                     ────────────────────RECV_grad m0────────────────────────────
//
// What carries the flows is the transport's choice: ordered channels and one lane for all
// collectives (OrderedChannels, what every plan is proved and simulated with), or NCCL's
// communicators (nccl/communicators.h).
//
// Operations of one group (ncclGroupStart to ncclGroupEnd) are one item of their stream: they start
// together, in any order, and the item is over when all of them are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schema/play/traffic.h"

namespace pp::play {

// What is one item: a single operation, or messages with no other instruction between them.
enum class Groups : uint8_t { kNone, kAdjacent };

struct Stream {
  int32_t device, carrier;
  std::vector<int32_t> ends;    // in list order
  std::vector<int32_t> begins;  // item -> its first one in `ends`; finally the number of ends
  size_t Items() const { return begins.size() - 1; }
  std::span<const int32_t> Item(size_t item) const {
    return {ends.data() + begins[item], ends.data() + begins[item + 1]};
  }
};

struct Streams {
  std::vector<Stream> all;  // device by device
  // The most streams of one device: as many kernels may want to run on it concurrently.
  int MostOnADevice() const;
};

// A carrier is one stream on each device that uses it. `carrier_of`: by flow.
Streams MakeStreams(const Traffic& traffic, std::span<const int32_t> carrier_of, Groups groups);

// By flow: one carrier for each channel, and one for all collectives.
std::vector<int32_t> OrderedChannels(const Traffic& traffic);

}  // namespace pp::play
