// The two units of fit-memory's limit.
#pragma once

#include "compiler/pass.h"
#include "compiler/search/search.h"

namespace pp {

// One search, and the program as it found it. REQUIRES: every device has room for its part.
FitReport FitOnce(Program& program, const PassContext& context, const search::Problem& problem);
// Under a limit in bytes. REQUIRES: a limit for all devices, or one for each.
Status FitBytes(Program& program, const PassContext& context);

}  // namespace pp
