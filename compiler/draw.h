// Programs as pictures and as data for other tools.
#pragma once

#include <span>
#include <string>

#include "compiler/simulate.h"
#include "schema/program.h"
#include "schema/status.h"

namespace pp {

enum class Paint { kPlain, kColour };  // kColour: with a terminal's colour codes

// One row a device, one column a unit of time, as schedules are drawn in papers:
//
//   d0 | F0  F1   .   .  B0  --  B1  --
//
// F forward, C checkpointed forward, R recompute, B backward, I and W its halves, then the
// micro-batch; in front the stage, where a device has several. "--" goes on, "." waits.
// Error: the times differ so much that it would be too wide.
Result<std::string> Grid(const Program& program, const Execution& execution, Paint paint);

// The same to scale, as a figure for a paper: SVG, one rectangle an instruction that takes
// time. Lanes other than compute have a row where something in them takes time.
std::string Svg(const Program& program, const Prediction& prediction);

// A plan and what the simulator says of it. Both outlive the call.
struct Drawn {
  const Program* program;
  const Prediction* prediction;
};

// One self-contained HTML page on which the plans stand above one another over one time
// axis, to zoom, to pan and to ask (draw/page/).
std::string Page(std::span<const Drawn> plans);

// Of each stage of the model, a line: where it is, its parameters, the operations and the traffic
// of a micro-batch's forward and backward (schema/model/work.h), and the sizes of its values.
// Error: no model.
Result<std::string> Stages(const Program& program);

// The whole program as one JSON object; the fields are those of README, "Formats".
std::string ShowJson(const Program& program);

}  // namespace pp
