// What piperun says to its user.
#pragma once

#include <string>

#include "schema/status.h"

namespace pp {

// On standard error, in one line. Where that cannot be written, the exit status says it alone.
void PrintError(const Status& status);

// On standard output, and flushes it. Failed: it cannot be written.
Status PrintOut(const std::string& text);

}  // namespace pp
