// Right programs of many shapes, made without the compiler: the starting point of schema/'s tests
// and fuzzers. Every value has its own memory.
#pragma once

#include <cstdint>
#include <vector>

#include "schema/program.h"

namespace pp {

enum class SampleBackward {
  kWhole,      // FW, BW
  kHalves,     // FW, BW_input, BW_weight
  kRecompute,  // CFW, RE, BW
};

struct SampleArgs {
  int devices = 2;
  int stages_per_device = 1;  // stage s is on device s mod D, or from the other end in pipe 1
  int microbatches = 2;
  // 1, or 2 that run in opposite directions. REQUIRES for 2: an even number of devices, one stage
  // per device, asynchronous.
  int pipes = 1;
  P2p p2p = P2p::kAsync;  // REQUIRES for kBlocking: one stage per device
  SampleBackward backward = SampleBackward::kWhole;
  int replicas = 1;
  int32_t zero = 0;
  // One forward, one backward in the steady state. Otherwise all forwards, then all backwards.
  bool one_f_one_b = false;        // REQUIRES: one stage per device, one pipe, asynchronous
  bool model = false;              // a tiny GPT-2 with tied embeddings
  std::vector<int32_t> tied = {};  // stages that share a tensor; REQUIRES: no model
};

Program SampleProgram(const SampleArgs& args);

// Gives each value that a list writes, and each region, memory of its own.
// REQUIRES: fields in their ranges (schema/check.h).
void GiveMemory(Program* program);

}  // namespace pp
