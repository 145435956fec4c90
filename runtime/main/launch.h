// How this process was started, and how it finds the others of its run.
#pragma once

#include <string>

#include "runtime/comm/mpi_plugin.h"
#include "runtime/main/transports.h"
#include "schema/base/status.h"

namespace pp {

// What the launcher (mpiexec, srun) has told this process.
struct Launch {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;  // among those of its host
  bool mpi = false;
};

// From the environment. One process alone is a run of threads where `transport` has them. Invalid:
// a launcher started several processes without telling them how to meet, so that each would train
// by itself.
Result<Launch> ReadLaunch(const TransportRow& transport);

// Joins the run that this process is a rank of; without a transport all ranks are threads of this
// process. `status` is an error that this process already has, which it passes on to the others.
// If not all others have joined within `patience` seconds, or 10 if that
// is less, the process ends; 0: it waits forever.
Joined JoinRun(const Launch& launch, const TransportRow& transport, const Status& status,
               double patience);

}  // namespace pp
