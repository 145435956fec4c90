// Where other trainers place stages. They know two patterns:
//
//   loop   stage s on device s mod D           V   0 1 .. D-1 D-1 .. 1 0, two stages a device
#pragma once

#include <cstdint>
#include <string>

#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

enum class Pattern : uint8_t { kLoop, kV };

// The pattern that the program's placement is, or is meant to be.
Pattern PatternOf(const Program& program);

// Why its stages are not placed so, as in "stage 1 is on device 0 (on device 1)"; empty: they are.
std::string Misplaced(const Program& program, Pattern pattern);

// The name that torchtitan needs as pipeline_parallel_schedule beside a CSV, because it places
// stages by that name: 1F1B, Interleaved1F1B or ZBVZeroBubble. Error: it cannot place them so.
Result<std::string> TorchtitanSchedule(const Program& program);

}  // namespace pp
