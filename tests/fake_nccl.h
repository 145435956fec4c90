// NCCL without GPUs (runtime/device/cuda/nccl.h), between fakes of CUDA (fake_cuda.h) in one
// process: a group of operations holds up its stream until each is matched by its other end.
//
// It counts the operations' groups, and detects what a real one would hang at. Members of a
// communicator whose streams wait for each other in a cycle, each with a group that lacks what the
// other needs, are a deadlock: what is queued behind cannot start. So are ranks that all create
// communicators that none of the others creates.
#pragma once

#include <memory>

#include "runtime/device/cuda/nccl.h"

namespace pp {

// Where the ranks of a run find each other.
class FakeNcclWorld;
std::shared_ptr<FakeNcclWorld> MakeFakeNcclWorld(int ranks);

// Of one rank.
std::unique_ptr<Nccl> MakeFakeNccl(std::shared_ptr<FakeNcclWorld> world);

}  // namespace pp
