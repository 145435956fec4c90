// What the dispatcher follows: an order of forwards and one of backwards for each device, and for
// each cell a rule. A few policies give all cells the same rule; the search then changes single
// ones.
#pragma once

#include <vector>

#include "compiler/search/problem.h"

namespace pp::search {

// Which goes first, a forward or the recompute that the next backward waits for. A device starves
// if it has nothing to do until this one's forward.
enum class First : uint8_t {
  kRecompute,
  kForwardIfStarving,
  kForward,
  kForwardAlways,  // before a backward, too
  kForwardAlwaysIfStarving,
};
inline constexpr int kFirsts = 5;

struct CellRule {
  int window = 0;   // the forward waits while this many cells of its device are in flight,
  int weights = 0;  // or more weight halves than this are outstanding
  int reserve = 0;  // keeping leaves room for the inputs of this many in flight
  First first = First::kRecompute;
  bool keep = true;   // keep the activation, where there is room
  bool early = true;  // recompute as soon as there is nothing else to do
};

struct Rules {
  std::vector<std::vector<int>> forwards, backwards;  // by device: cells in order
  std::vector<CellRule> cells;
};

// How many cells a device may have in flight: `factor` times those that are in flight in a pipeline
// without waits (kFlow), or those that fill the time to the first backward (kRoundTrip), or any
// number.
struct Policy {
  enum Window { kFlow, kRoundTrip, kOpen } window = kFlow;
  double factor = 1;
  enum Reserve { kNothing, kInputs } reserve = kNothing;
  First first = First::kRecompute;
};

// The orders of `plan`, and one rule for all cells of a device.
Rules MakeRules(const Problem& problem, const Plan& plan, const Policy& policy);

// Rules by which the dispatcher builds a plan much like `plan`.
Rules Imitate(const Problem& problem, const Plan& plan);

}  // namespace pp::search
