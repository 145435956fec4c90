// The text form of a program: what `pipec show` prints, people edit and `pipec import`
// reads. It states the order of the instructions; memory offsets are not part of it,
// because plan-memory finds the same ones again.
//
//   program 1f1b stages 2 microbatches 1
//   device 0 holds s0
//     LOAD      s0 m0
//     FW        s0 m0
//     SEND_act  s0 m0 to d1
//     ...
//
// Further lines before the first device, each only if needed:
//
//   passes mario
//   p2p blocking
//   replicas 2
//   zero 1
//   tied 0 3
//   model {...}
//   batch 2 sequence 64
//   layers 2 2 2 3
//   pipe d0 d1 d2 d3
//   pipe d3 d2 d1 d0
//   micro-batches on pipes 0 1 0 1
//   routine step-8 microbatches 8         lists beside those of the step (routines.h)
//
// Where they begin on a device stands a line of their name. An evaluation needs no line before the
// first device.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

// "act s0 m3"; "wgrad s1" where there is no micro-batch.
std::string ToText(const Value& value);
// "SEND_act s0 m0 to d1".
std::string ToText(const Instruction& instruction);

std::string Print(const Program& program);
// One device's list alone, as in Print.
std::string PrintDevice(const Program& program, int device);

// Where the author of a program finds an instruction: "line 7". Indices count through the body of a
// device, and on through its routines. kItself: the device.
using Naming = std::function<std::string(int device, size_t index)>;
inline constexpr size_t kItself = SIZE_MAX;
// "device 0, instruction 3": for programs that nobody wrote.
std::string NameByIndex(int device, size_t index);

// The program that the text states, without memory. Errors name `origin` and the line.
// Structure only: fields are in range; whether the program is right is verify's question.
// `name`, if not null, then knows the lines.
Result<Program> Parse(std::string_view text, const std::string& origin, Naming* name = nullptr);

}  // namespace pp
