// What the CUDA backend needs from NCCL: communicators, and groups of sends and receives.
//
// There are two: NCCL's own (nccl_driver.cc, the one file that includes its header), and a fake for
// the tests that watches for deadlocks. Each rank has one of these, whose functions one thread
// calls at a time, except for Abort.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/stream.h"
#include "runtime/comm/transport.h"
#include "schema/base/status.h"

namespace pp {

// Blocks of a communicator's kernel. A multiprocessor that runs one computes nothing else, even
// while it only waits: products leave so many free (CudaExperiments). Not measured yet.
inline constexpr int kNcclBlocks = 8;

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
  // This is member number `member` of `members`: waits until all members have come.
  virtual Result<Communicator> Create(const Id& id, int member, int members) = 0;
  // Puts operations into a stream, which progress together; the stream continues when all are over.
  // It returns when they are there, which takes microseconds, unless something is wrong.
  virtual Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                         Stream stream) = 0;
  // Failed: something is wrong with the communicator, here or elsewhere.
  virtual Status Check(Communicator communicator) = 0;
  // Any thread, also during a call: ends them, together, as one of them alone may wait for streams
  // that another one holds up. Operations that are in streams end somehow, and so do calls, unless
  // NCCL cannot end them: those that wait for other members to come.
  virtual void Abort(std::span<const Communicator> communicators) = 0;
};

}  // namespace pp
