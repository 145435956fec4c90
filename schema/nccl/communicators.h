// Which communicator carries what: what the proof proves (prove.h), and what the runtime then
// creates (runtime/comm/communicators.h).
//
//   messages    as Sharings says; each replica and each tensor-parallel index has its own
//   reductions  all collectives of the lists: of buckets, of the norm, of tied embeddings, ZeRO's
//               scatters and gathers. One communicator of all ranks, as a device does one after the
//               other in any case, in list order (OrderedChannels in play/streams.h)
//   peers       what the tensor-parallel peers of a device sum or gather within its compute
//               instructions: one for each device
//
// A communicator is one stream on each of its devices (play/streams.h). Or, if so stated, one
// stream of a device has the operations of all its communicators but the peers', in list order.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schema/play/streams.h"

namespace pp::nccl {

using play::End;
using play::Flow;
using play::Groups;
using play::Stream;
using play::Streams;
using play::Traffic;
using play::Transfer;

// How messages share communicators, the coarsest first.
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

enum class Use : uint8_t { kMessages, kReductions, kPeers };

// Names a communicator: flows with one key share it. All ranks create theirs in ascending order.
struct Key {
  Use use = Use::kMessages;
  std::array<int32_t, 4> of = {};  // of messages: the sharing, and then what it keeps apart
  auto operator<=>(const Key&) const = default;
};
Key KeyOf(const Flow& flow, const Sharings& sharings);

struct Communicator {
  Key key;
  std::vector<int32_t> devices;  // its members: ascending, of one replica
  std::vector<Flow> flows;
  bool Has(int device) const;
  Sharing OfMessages() const { return static_cast<Sharing>(key.of[0]); }
};
struct Assignment {
  std::vector<Communicator> communicators;  // ascending by key
  std::vector<int32_t> of_flow;             // by flow: the number of its communicator
  int Count(Use use) const;
};
Assignment Assign(std::span<const Flow> flows, const Sharings& sharings);
// All that the ranks of one replica and one tensor-parallel index have.
Assignment AssignmentOf(const Program& program, const Sharings& sharings);

// What has one stream on a device.
enum class StreamPer : uint8_t { kCommunicator, kDevice };

struct Layout {
  Sharings sharings;
  Groups groups = Groups::kNone;
  StreamPer stream_per = StreamPer::kCommunicator;
};
Streams MakeStreams(const Traffic& traffic, const Layout& layout);

// Of those that carry messages: "6 communicators, each for one direction of a pair of devices".
std::string ToText(const Assignment& assignment);

}  // namespace pp::nccl
