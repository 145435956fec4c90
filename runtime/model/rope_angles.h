// The angles of rotary position embeddings (RopeConfig), in fp32 as Hugging Face has them: of a
// frequency some last bits may differ, as powers and llama3's interpolation are rounded elsewhere.
#pragma once

#include <cstdint>
#include <vector>

#include "schema/model/config.h"

namespace pp {

// By how much each position turns further, for the head_dim/2 pairs of a head, in radians.
std::vector<float> RopeTurns(const RopeConfig& rope, int head_dim);

// The cosines [tokens, turns] of the angles of positions 0, 1, ..., then the sines, as many.
void RopeAngles(const std::vector<float>& turns, int64_t tokens, float* out);

}  // namespace pp
