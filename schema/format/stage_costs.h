// The costs of a pipeline's stages in a file, as pipec.torch.profile measures them: pipec --costs
// FILE for plans without a model.
//
//   {"costs": {"f": [0.031, 0.036], "b": [0.06, 0.07], "comm": 0.001, "stash": [41943040, ...]}}
//
// under the keys of --costs (costs.def), each a number or a list of one for each stage. Times are
// in seconds, of one micro-batch on one stage, however many of them a device will have; bandwidth
// is in bytes per second. f is there, and b or both bi and bw. The file's other members mean
// nothing here.
#pragma once

#include <string>

#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"

namespace pp {

// Whether it may be such a file.
bool HasStageCosts(const std::string& json);
// The numbers as they are there. Errors of both: what is wrong, without the file's name.
Result<CostModel> ParseStageCosts(const std::string& json);
// The same as costs of a program: V stages on a device cost V times as much. Error: its stages are
// not as many.
Result<CostModel> CostsOfStages(CostModel costs, const Program& program);

}  // namespace pp
