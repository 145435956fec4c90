// Two transports as one: the one to ranks that are near, the other to all else.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/transport.h"

namespace pp {

// The bell is that of `near`: whoever must not miss what is `far` tests, as long as it polls.
// REQUIRES: `far` polls, or nobody is far.
std::unique_ptr<Transport> MakeRoutedTransport(std::unique_ptr<Transport> near,
                                               std::unique_ptr<Transport> far,
                                               const std::vector<int>& near_ranks);

}  // namespace pp
