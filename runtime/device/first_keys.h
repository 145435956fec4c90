// The first key that each query sees, where attention has a window (kernels/attention.h).
#pragma once

#include <cstdint>
#include <vector>

#include "schema/model/job.h"

namespace pp {

// Of the job's Attention, [T]: query t sees the last keys up to its own, as many as the window has.
// Empty: each query sees all keys up to its own.
std::vector<int32_t> FirstKeys(const Job& job);

}  // namespace pp
