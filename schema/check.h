// Whether every number of a program from outside is in range: ops and kinds are known; stages,
// micro-batches, devices and pipes exist; an instruction has the fields of its op and no others;
// regions lie inside the arena. After that, the rest of the code can use the numbers as indices.
// Whether the program is *right* is for verify to say.
#pragma once

#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

// REQUIRES: nothing; this is the first look at a program from outside.
// Errors: "device 3, instruction 17: micro-batch 9 (0 to 7)". Lists may be empty.
Status CheckFields(const Program& program);

// That it is one word of the text form. `what` has it as its name.
Status CheckWord(const char* what, const std::string& word);

// That no two pipes place a stage on one device: a device holds a stage once.
// REQUIRES: the devices of all pipes exist.
Status CheckPipes(const Program& program);

}  // namespace pp
