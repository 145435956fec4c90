// What the CUDA backend needs from NCCL: communicators, and groups of sends and receives.
//
// There are two: NCCL's own (nccl_driver.cc, the one file that includes its header), and a fake for
// the tests that watches for deadlocks. Nothing blocks: what is begun is under way until Poll says
// otherwise. One thread of a rank calls everything here; each rank has one of these.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/stream.h"
#include "runtime/comm/transport.h"
#include "schema/base/status.h"

namespace pp {

class Nccl {
 public:
  using Stream = kernels::cuda::Stream;
  using Communicator = void*;
  using Id = std::array<std::byte, 128>;

  struct Operation {
    Way way = Way::kSend;
    int member = 0;  // the peer
    void* data = nullptr;
    int64_t bytes = 0;  // > 0
  };

  virtual ~Nccl() = default;

  // A name for a communicator, which one of its members creates and tells the others.
  virtual Result<Id> MakeId() = 0;
  // Begins to create it; this is member number `member` of `members`. It is created when all have
  // begun.
  virtual Result<Communicator> Create(const Id& id, int member, int members) = 0;
  // Begins to put operations into a stream, which progress together; the stream continues when all
  // are over. REQUIRES: nothing is under way.
  virtual Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                         Stream stream) = 0;
  // Whether what was begun is done: the communicator created, the operations in the stream. Failed:
  // something is wrong with the communicator, here or elsewhere, at any time since.
  virtual Status Poll(Communicator communicator, bool* done) = 0;
  // Ends them, together: one of them alone may wait for streams that another one holds up.
  // Operations that are in streams end somehow.
  virtual void Abort(std::span<const Communicator> communicators) = 0;
};

}  // namespace pp
