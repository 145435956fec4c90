// The angles of rotary position embeddings (RopeConfig), in fp64: at position 1000 an angle in fp32
// would be wrong by 6e-5 radians, as are those of Hugging Face.
#pragma once

#include <cstdint>
#include <vector>

#include "schema/model/job.h"

namespace pp {

// Of the job's Rope: the cosines [T, head_dim/2] of the angles of positions 0, 1, ..., then the
// sines, as many, times RopeConfig::attention_factor. Empty: it has none.
std::vector<float> RopeAngles(const Job& job);

}  // namespace pp
