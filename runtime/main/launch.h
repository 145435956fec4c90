// How this process was started, and how it finds the others of its run.
#pragma once

#include <string>

#include "runtime/comm/mpi_plugin.h"
#include "schema/status.h"

namespace pp {

// What a launcher (mpiexec, srun) has told this process.
struct Launch {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;  // among those of its host
  bool mpi = false;
};

// From the environment. Invalid: a launcher started several processes without telling them how to
// meet, so that each would train by itself.
Result<Launch> ReadLaunch(const std::string& transport);

// The run that this process is a rank of; without a transport all ranks are threads of this one.
// `status` is what this process knows to be wrong already: the others learn it. `transport` is the
// option. A process that is not joined by all others within `patience` seconds (0: it waits) ends.
Joined JoinRun(const Launch& launch, const std::string& transport, const Status& status,
               double patience);

}  // namespace pp
