// Numbers that leave a run's memory for a file: a training that has diverged is no result.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "schema/base/status.h"

namespace pp {

// Failed: one of them is not finite. The error names `what`, and the element, of which the first is
// number `first`.
Status CheckFinite(const std::string& what, int64_t first, std::span<const float> numbers);

}  // namespace pp
