// Hardware queues. CUDA assigns each stream that is created to one of a device's hardware queues in
// turn (CUDA_DEVICE_MAX_CONNECTIONS of them: at most 32, by default 8). A queue hands work to the
// device in the order of submission, whatever stream it is of: what waits there for the kernel
// before it in its stream, or for an event, holds up all that was submitted behind it.
//
//   queue 3   stream A: RECV from d2   stream A: RECV from d2   stream B: SEND to d1
//             runs, until d2 sends     waits for the first      waits behind A, but d1 needs it
//
// Which streams can hold up a queue for as long as another device pleases?
//   a communicator's        its kernels wait for other ranks, and what follows one waits with it
//   NCCL's own two for it   wait by events for its kernels, so that launches stay in order
//   the device's own        hold kernels and copies, which end by themselves; but one that waits
//                           for an event of a message (a WAIT in the stream) does, too
// And whichever stream shares a queue with one of those can be held up, by which, as above, a
// device can wait for itself. Streams of the third kind may share a queue, but it is CUDA that
// chooses who shares. So a plan is safe only if each of these streams has a queue of its own: no
// device is known on which it would hang with fewer, and none on which it could not.
#pragma once

#include "schema/nccl/communicators.h"

namespace pp::nccl {

inline constexpr int kMostQueues = 32;
// The runtime's own streams of a device, and CUDA's default one.
inline constexpr int kOwnStreams = 7;
// That NCCL creates for each communicator.
inline constexpr int kNcclStreams = 2;

// What runs concurrently on a device.
struct DeviceUse {
  int device = 0;
  int communicators = 0;
  int streams = 0;  // of theirs, each with a kernel of NCCL at a time
  int Queues() const {
    return communicators == 0 ? 0 : kOwnStreams + streams + kNcclStreams * communicators;
  }
};
// The first device that needs the most queues.
DeviceUse MostUsed(const Assignment& assignment, StreamPer stream_per);

}  // namespace pp::nccl
