// Hardware queues. CUDA assigns each stream that is created to one of a device's hardware queues in
// turn (CUDA_DEVICE_MAX_CONNECTIONS of them: at most 32, by default 8). A queue hands work to the
// device in the order of submission, whatever stream it is of: what waits there for the kernel
// before it in its stream, or for an event, holds up all that was submitted behind it.
//
//   queue 3   stream A: RECV from d2   stream A: RECV from d2   stream B: SEND to d2
//             runs until d2 sends      waits for the first      behind A, but d2 needs it to send
//
// Which streams can hold up a queue for as long as another device pleases?
//   a communicator's        its kernels wait for other ranks, and what follows one waits with it
//   NCCL's own two for it   wait by events for its kernels, so that launches stay in order
//   the device's own        hold kernels and copies, which end by themselves; but one that waits
//                           for an event of a message (a WAIT in the stream) does, too
// Whatever shares a queue with one of those can be held up, and what is held up can be, as above,
// what the other device needs: a deadlock that the lists do not show. Streams that wait for
// nobody could share a queue, but CUDA chooses which ones share. So a plan passes only if each
// stream of a device has a queue of its own. That is cautious: with fewer it depends on the order
// in which streams are created whether a plan hangs, which has not been tried.
#pragma once

#include "schema/nccl/communicators.h"

namespace pp::nccl {

inline constexpr int kMostQueues = 32;
// The runtime's own streams of a device, and CUDA's default one.
inline constexpr int kOwnStreams = 7;
// That NCCL creates for each communicator.
inline constexpr int kNcclStreams = 2;

// What NCCL takes of a device's memory, in bytes, beside the plan's: some 0.3 GB, and 0.08 for each
// connection of a communicator with another rank, as others report (not measured by us).
inline constexpr int64_t kNcclBytes = 300'000'000, kNcclPeerBytes = 80'000'000;
constexpr int64_t BytesOf(int64_t peers) {
  return peers == 0 ? 0 : kNcclBytes + peers * kNcclPeerBytes;
}

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

// Other ranks that a rank exchanges something with, counted once for each of its communicators: of
// the rank that has the most.
int64_t MostPeers(const Program& program, const Assignment& assignment);

}  // namespace pp::nccl
