// Ctrl-C and its relatives: SIGINT, SIGTERM, SIGHUP.
//
// Before the first step, when nothing can be lost, a signal ends the process with an error. After
// that, the first one stops all ranks after a common step, the second stops them where they are,
// and the third ends the process, whatever it is doing.
#pragma once

#include <atomic>

namespace pp {

// Installs the handlers. `is_first`: this is rank 0. A SIGHUP that was ignored at the start (nohup)
// stays ignored.
void CatchStopSignals(bool is_first);

// The first step begins: from now on requests are counted.
const std::atomic<int>* CountStopRequests();

}  // namespace pp
