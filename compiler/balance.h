// --layers-per-stage auto.
#pragma once

#include <vector>

#include "compiler/machine/fit.h"
#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

// What a micro-batch takes on the device that has them: a layer, and what the first and the last
// stage have beside their layers.
struct LayerCosts {
  double first = 0, layer = 1, last = 0;
};

// Forward and backward on the machine or by the profile. Without either, the multiplications of
// matrix products and of attention over half a sequence, of which a backward costs a constant
// multiple, whatever it is; an embedding has none. `job`: its model, sizes and dtype. Errors: those
// of the prices.
Result<LayerCosts> LayerCostsOf(const Job& job, const PriceSource& prices);

// How many of so many layers each stage gets, so that the device with the most to compute has as
// little as possible; a stage may get none. The pipes of `program` say which device holds a stage.
std::vector<int> BalanceLayers(const Program& program, int layers, const LayerCosts& costs);

}  // namespace pp
