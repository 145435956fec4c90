// Whether every number of a program from outside is in range: ops and kinds are known; stages,
// micro-batches, devices and pipes exist; an instruction has the fields of its op and no others;
// regions lie inside the arena. After that, the rest of the code can use the numbers as indices.
// Whether the program is *right* is for verify to say.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

// REQUIRES: nothing; this is the first look at a program from outside.
// Errors: "device 3, instruction 17: micro-batch 9 (0 to 7)". Lists may be empty.
Status CheckFields(const Program& program);

// That it is one word of the text form. `what` has it as its name.
Status CheckWord(const char* what, const std::string& word);

// That a program can have this routine beside these: it is one of those that there are
// (routines.h), and none of them is.
Status CheckRoutine(const Program& program, const Routine& routine,
                    std::span<const Routine> others);
// That the shapes are those of all its micro-batches.
Status CheckShapes(const Program& program);
// That the program has the steps of its ramp.
Status CheckRamp(const Program& program);
// That its micro-batches are on pipes that exist.
Status CheckPipeOf(const Program& program, const Routine& routine);

// Whether these can share a tensor: two or more of so many stages, ascending.
bool CanBeTied(const std::vector<int32_t>& tied, int32_t stages);
// That the program's can, and are not beside a model, which says itself which they are.
Status CheckTied(const Program& program);

// That no two pipes place a stage on one device: a device holds a stage once.
// REQUIRES: the devices of all pipes exist.
Status CheckPipes(const Program& program);

}  // namespace pp
