// Programs as pictures and as data for other tools.
#pragma once

#include <span>
#include <string>

#include "compiler/simulate.h"
#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

enum class Paint { kPlain, kColour };  // kColour: with a terminal's colour codes

// One row per device, one column per unit of time, as schedules are drawn in papers:
//
//   d0 | F0  F1   .   .  B0  --  B1  --
//
// F forward, C checkpointed forward, R recompute, B backward, I and W its halves, then the
// micro-batch; before it the stage, if a device has several. "--" continues, "." waits.
// Error: the times differ so much that it would be too wide.
Result<std::string> Grid(const Program& program, const Execution& execution, Paint paint);

// A plan and what the simulator predicts for it, or what a run took. Both outlive the call.
struct Drawn {
  const Program* program;
  const Prediction* prediction;
  std::string which = "";  // beside the scheme's name, where a plan is there twice
};

// The same as a grid to scale, as a figure for a paper: SVG, one rectangle per instruction that
// takes time, the plans below one another. Lanes other than compute have a row if something in them
// takes time. REQUIRES: at least one.
std::string Svg(std::span<const Drawn> plans);

// One self-contained HTML page with the plans stacked over one time axis, to zoom, pan and query
// (draw/page/).
std::string Page(std::span<const Drawn> plans);

// One line for each stage of the model: where it is, its parameters, the operations and the traffic
// of a micro-batch's forward and backward (schema/model/work.h), and the sizes of its values.
// Error: no model.
Result<std::string> Stages(const Program& program);

// One line for each device: what it holds all the time (weights, in the activations' type, too;
// gradients, optimizer, workspace of kernels, sums), what its values take where they take most
// (stash, what BW_input saves, acts and grads, tokens), the gaps between them and the arena; and
// that instruction. Without a model what is alive as the plan's costs have it. Error: neither.
Result<std::string> MemoryTable(const Program& program);

// The whole program as one JSON object; the fields are those of schema/README.md, "Formats".
std::string ShowJson(const Program& program);

}  // namespace pp
