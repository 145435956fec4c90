// Ctrl-C and its relatives: SIGINT, SIGTERM, SIGHUP.
//
// Before the first step, when nothing is lost, one ends the process with a line of error. Then the
// first one stops all ranks after a common step, the second one where they are, and the third one
// ends the process, whatever it is at.
#pragma once

#include <atomic>

namespace pp {

// From now on. `is_first`: this is rank 0. Signals that whoever started us had
// ignored (nohup, for SIGHUP) stay ignored.
void CatchStopSignals(bool is_first);

// The first step begins: from now on requests are counted.
const std::atomic<int>* CountStopRequests();

}  // namespace pp
