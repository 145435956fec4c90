// A slow network, for experiments on a fast one: a transport around any other.
//
//   start          over below: t0      the send is over         the receive is over
//   |--------------|------------------|------------------------|
//                     bytes / bandwidth        latency
//
// As in the simulator, a message occupies its channel for its bytes and arrives a latency later.
// Control messages are not delayed. A port carries one transfer at a time: messages that come
// closer together than the latency wait for each other at the receiver.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/transport.h"

namespace pp {

struct Network {
  double latency = 0;  // seconds
  double seconds_per_byte = 0;
};

// "latency=50us,bandwidth=1GB/s", either key alone, too. Units as in schema/base/units.h; at least
// 1 B/s. The error names no option.
Result<Network> ParseNetwork(const std::string& text);

// REQUIRES: `fast` outlives it, and nobody else uses it for anything but control messages.
std::unique_ptr<Transport> MakeSlowTransport(Transport* fast, const Network& network);

}  // namespace pp
