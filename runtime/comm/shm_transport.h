// The transport between processes of one host. The receiver copies large transfers directly out of
// the sender's memory, if the system allows it (process_vm_readv(2)). Others go through memory that
// both share, in pieces: the sender copies one in while the receiver copies the previous one out.
// Each does so when it starts or tests, and rings the other's bell. A rank with nothing to do
// sleeps.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/shm_segment.h"
#include "runtime/comm/transport.h"

namespace pp {

enum class ShmCopy { kDirect, kInPieces };

struct ShmTransportArgs {
  std::shared_ptr<ShmSegment> segment;
  int rank = 0;              // of all ranks
  int ranks = 1;             // on all hosts
  std::vector<int> members;  // the ranks of this host, in order; those that the segment is for
  ShmCopy copy = ShmCopy::kDirect;  // what it receives
};

// REQUIRES: `rank` is a member, and so is the peer of every transfer.
std::unique_ptr<Transport> MakeShmTransport(ShmTransportArgs args);

// A segment for ranks that are all on this host, with its name already removed: for threads, and
// for processes that this one forks.
std::unique_ptr<Transport> MakeShmTransport(std::shared_ptr<ShmSegment> segment, int rank,
                                            ShmCopy copy = ShmCopy::kDirect);

}  // namespace pp
