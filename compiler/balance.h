// --layers-per-stage auto.
#pragma once

#include <vector>

#include "schema/program.h"

namespace pp {

// How many of the model's layers each stage gets, so that the device with the most to compute has
// as little as possible. A layer counts by the multiplications of its matrix products and of
// attention over half a sequence, the head by its own; the last stage always has the head. A
// backward costs a constant multiple of them, whatever it is. The pipes of `program` say which
// device holds a stage.
std::vector<int> BalanceLayers(const Program& program, const ModelConfig& model,
                               int sequence_length);

}  // namespace pp
