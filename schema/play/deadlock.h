// Why a play has stopped: everything that has stopped waits for something that has stopped, so the
// way from one to the next ends in a cycle.
#pragma once

#include <string>
#include <vector>

#include "schema/play/play.h"
#include "schema/play/state.h"

namespace pp::play {

// The last waits for the first. REQUIRES: the state is not over, and nothing can proceed.
std::vector<Blocked> FindCycle(const State& state);

// "device 1 'SEND_grad s0 m0 to d0' (instruction 5) needs device 1 'BW s1 m0' (instruction 4),
// which comes after device 1 'WAIT act s0 m0' (instruction 2), which waits for ..., which waits
// to be matched by the first".
std::string ToText(const Program& unrolled, const std::vector<Blocked>& cycle);

}  // namespace pp::play
