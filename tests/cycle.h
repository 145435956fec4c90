// Reads the cycle that a deadlock's error prints, without a word from the engine that found it.
#pragma once

#include <string>

namespace pp {

// What is wrong with the cycle in `error`; "" if each step is one that the two instructions that it
// names can take: a WAIT waits for what starts its value, a message waits for its other end, what
// comes after something comes later on the same device; and the last one leads to the first.
std::string FaultOfCycle(const std::string& error);

}  // namespace pp
