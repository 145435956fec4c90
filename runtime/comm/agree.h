// All ranks become ready, or none starts: they must have the same inputs, and each host the memory
// for its ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/transport.h"
#include "schema/base/status.h"

namespace pp {

// Something that must be the same on all ranks.
struct Item {
  std::string name;  // an option; in the error
  uint64_t digest;
  const char* right = "the same on all ranks";  // in the error
};
inline constexpr size_t kMostItems = 64;

// What a rank contributes.
struct Readiness {
  Status status;
  std::vector<Item> items;     // the same names on all ranks
  std::vector<int64_t> bytes;  // rank 0: of each rank; empty: memory is not checked
  uint64_t gpu = 0;            // that no other rank may have; 0: not checked
  bool released = false;       // the error is a consequence of another rank's
  bool complete = false;       // whatever the error, no other rank waits for this one
};

// All ranks leave with one answer: the error of the first rank that has one of its own, else
// Invalid for the first item whose digest is not rank 0's, for two ranks with one GPU, or for a
// host whose ranks together need more memory than it has. Every rank must call it.
//
// `ready` is polled until it answers. However long that takes, the rank keeps giving heartbeats.
// Failed: a rank gives none for `patience` seconds in which this one is awake (0: wait forever);
// then what is under way is abandoned, and no later exchange on this transport begins.
//
// `release`, if given, is called once when some rank has an error: those that are not ready must
// not wait for it, but soon answer.
using AskReady = std::function<std::optional<Readiness>()>;
Status Agree(Transport& transport, double patience, const AskReady& ready,
             const std::function<void()>& release = {});
Status Agree(Transport& transport, double patience, Readiness ready);

}  // namespace pp
