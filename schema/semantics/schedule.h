// Is a schedule whole? Each micro-batch passes each stage of its pipe forwards and backwards once,
// on the stage's device:
//
//   FW ... BW      CFW ... RE ... BW      FW ... BW_input ... BW_weight
//
// What is missing, twice, elsewhere or too early is named as whoever wrote the lists knows it,
// before anything is added to them.
#pragma once

#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/text.h"

namespace pp {

// Looks at the compute instructions of the bodies. REQUIRES: fields in their ranges
// (schema/check.h); !program.overlaps. Errors: "BW s0 m1 is missing on device 0 (line 4 has its
// FW)", "line 7: 'BW s1 m1' comes before 'FW s1 m1', line 8", "line 5: 'FW s0 m1' stands twice, as
// on line 4", "line 3: 'FW s0 m0' is on device 1 (stage 0 of its pipe is on device 0)".
Status CheckSchedule(const Program& program, const Naming& name);

}  // namespace pp
