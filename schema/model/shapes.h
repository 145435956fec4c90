// The shapes of a plan's micro-batches where they are not all alike (--shapes).
//
//   8x1024,4x2048x2     micro-batches 0 to 7 are a sequence of 1024 tokens, 8 to 11 two of 2048
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"

namespace pp {

// [sequences, tokens]: B and T of a micro-batch.
struct Extent {
  int32_t sequences = 1;
  int32_t tokens = 0;
  bool operator==(const Extent&) const = default;
  int64_t all() const { return int64_t{sequences} * tokens; }
};

struct Shapes {
  struct Run {
    int32_t microbatches = 0;
    Extent extent;
    bool operator==(const Run&) const = default;
  };
  std::vector<Run> runs;  // each is a shape; none: all micro-batches are those of the job
  bool operator==(const Shapes&) const = default;

  bool given() const { return !runs.empty(); }
  // At least one.
  int count() const { return given() ? static_cast<int>(runs.size()) : 1; }
  // Of all micro-batches: their sequences and tokens.
  int64_t sequences() const;
  int64_t tokens() const;
  // REQUIRES: given(). All of them; and the one with the longest sequences, the most of those.
  int64_t microbatches() const;
  Extent largest() const;
  // By micro-batch; empty if there are none.
  std::vector<int32_t> ByMicrobatch() const;
};

inline constexpr size_t kMostShapes = 64;
// Errors say what is right.
Status ReadShapes(std::string_view text, Shapes* shapes);
std::string TextOf(const Shapes& shapes);

}  // namespace pp
