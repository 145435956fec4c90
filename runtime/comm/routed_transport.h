// Two transports as one: one to nearby ranks, the other to all others.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/transport.h"

namespace pp {

// The bell is that of `near`: while `far` polls, whoever must not miss its news tests. REQUIRES:
// `far` polls, or no rank is far.
std::unique_ptr<Transport> MakeRoutedTransport(std::unique_ptr<Transport> near,
                                               std::unique_ptr<Transport> far,
                                               const std::vector<int>& near_ranks);

}  // namespace pp
