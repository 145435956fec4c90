// The value of --memory-limit.
#pragma once

#include <string>
#include <vector>

#include "schema/base/status.h"

namespace pp {

// One value for all devices, or one for each.
struct MemoryLimit {
  enum Unit { kActivations, kBytes } unit = kActivations;
  std::vector<double> values;  // empty: no limit
};

// "1.5", "2:2:1.5:1" in activations of one micro-batch of a whole device; "40GiB",
// "40GiB:24GiB" in bytes (B, KiB, MiB, GiB, TiB); commas separate, too. The error
// names no option.
Result<MemoryLimit> ParseMemoryLimit(const std::string& text);

}  // namespace pp
