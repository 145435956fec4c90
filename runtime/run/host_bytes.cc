#include "runtime/run/host_bytes.h"

#include <algorithm>

#include "runtime/comm/shm_segment.h"
#include "runtime/run/send_ports.h"
#include "schema/model/layout.h"
#include "schema/model/workspace.h"
#include "schema/topology.h"

namespace pp {
namespace {

// As measured with MPICH 4.0, without what the processes of a host have in common (code, and MPI's
// shared memory), and of a further rank in the same process: its stacks and lists.
constexpr int64_t kProcess = 6 << 20, kThread = 1 << 20;
// Of a record, as checkpoints are written and read (states.cc).
constexpr int64_t kRecord = 16 << 20;
// Of what rank 0 exports, at once (export.cc), on its way from another rank; and all else that the
// end of a run takes.
constexpr int64_t kExport = 8 << 20, kEnd = 4 << 20;

int64_t LargestTensor(const Program& program, int device) {
  int64_t largest = 0;
  for (const int stage : program.StagesOf(device))
    for (const Tensor& tensor : LayoutStage(*program.job, stage).tensors)
      largest = std::max(largest, tensor.bytes());
  return largest;
}

}  // namespace

int64_t HeldBytesOf(int rank, const HostBytesArgs& args) {
  return (args.saves ? kRecord : 0) + (args.exports ? kExport : 0) +
         (args.processes || rank == 0 ? kEnd : 0);
}

int64_t HostBytesOf(const Program& program, int rank, const HostBytesArgs& args) {
  const int device = TopologyOf(program).PlaceOf(rank).device;
  int64_t bytes = program.lists[device].arena_bytes + LargestTensor(program, device) +
                  (args.threads - 1) * WorkspaceOf(*program.job).kernel_bytes;
  if (args.resumes) bytes += kRecord;
  if (rank == 0) bytes += args.source * (args.exports ? 2 : 1);
  bytes += HeldBytesOf(rank, args);
  if (args.processes)
    bytes += static_cast<int64_t>(SendPorts(program, rank).size()) * ShmChannel::kPieces *
             ShmChannel::kPieceBytes;
  return bytes + (args.processes || rank == 0 ? kProcess : kThread);
}

}  // namespace pp
