// Which communicator carries what. A communicator is one stream on each of its devices
// (play/streams.h).
#pragma once

#include <array>
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

// How messages share communicators, the coarsest first. Collectives have one for each set of
// devices of a collective: NCCL gives no choice there.
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

// Each communicator as a stream on each of its devices.
Streams MakeStreams(const Traffic& traffic, const Assignment& assignment, Groups groups);

// Of those that carry messages: "6 communicators, each for one direction of a pair of devices".
std::string ToText(const Assignment& assignment);

}  // namespace pp::nccl
