// Standard output and standard error of piperun.
#pragma once

#include <string>

#include "schema/base/status.h"

namespace pp {

// To standard error, as one line. If that cannot be written, or nobody reads it for ten seconds,
// only the exit status tells.
void PrintError(const Status& status);

// To standard output, flushed. Failed: it cannot be written.
Status PrintOut(const std::string& text);

}  // namespace pp
