// Errors of a proof in the words of the lists' author: where a proof says "instruction 3", an
// import says "line 7".
#pragma once

#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/text.h"

namespace pp {

// The message with the place of each instruction that it quotes, as in "device 1, 'FW s1 m0' (line
// 7)", instead of its number, which may count what passes have added. What only passes have made
// keeps its number. If it quotes none, with the place of the device that it is about.
// `name`: of `lists`.
Status WithLines(const Status& status, const Program& lists, const Naming& name);

}  // namespace pp
