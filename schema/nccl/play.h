// Plays the lists with streams: does every device reach the end?
//
// A device's compute lane follows its list and stops at a WAIT until what it waits for is over. An
// item of a stream starts when the one before it is over and the compute lane has passed what its
// operations need; the host has enqueued it long before. It is then a kernel that occupies the
// device until each of its operations has met the other ends, which have started, too. How long
// anything takes does not matter: what has started once stays started, so without a limit all
// orders end in one state (as in a Kahn network).
//
// If fewer kernels than streams can run at once, that no longer holds: whoever comes first holds
// the place. The play then takes the worst order that it knows: kernels take their places as early
// as they can, first those whose partners have not come.
#pragma once

#include "schema/nccl/streams.h"
#include "schema/status.h"

namespace pp::nccl {

inline constexpr int kNoLimit = 1 << 30;

// Error: "deadlock: device 0 'RECV_grad s0 m0 from d1' (instruction 6) is queued behind device 0
// '...' (instruction 5), which waits to meet device 1 '...' ..., which ... the first".
// REQUIRES: kernels >= 1, the number that run concurrently on a device.
Status Play(const Program& paper, const Traffic& traffic, const Streams& streams,
            int kernels = kNoLimit);

}  // namespace pp::nccl
