// The angles of rotary position embeddings (RopeConfig), in fp64: at position 1000 an angle in fp32
// would be wrong by 6e-5 radians, as are those of Hugging Face.
#pragma once

#include <cstdint>
#include <vector>

#include "schema/model/config.h"

namespace pp {

// The rotation per position, for the head_dim/2 pairs of a head, in radians.
std::vector<double> RopeTurns(const RopeConfig& rope, int head_dim);

// The cosines [tokens, turns] of the angles of positions 0, 1, ..., then the sines, as many.
void RopeAngles(const std::vector<double>& turns, int64_t tokens, float* out);

}  // namespace pp
