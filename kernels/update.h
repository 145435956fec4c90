// Whether a kernel sets an output (`=`) or adds to what is there (`+=`).
//
// A gradient accumulator is set by the first micro-batch of a step and added to by the others, so
// that it need not be filled with zeros.
#pragma once

namespace pp::kernels {

enum class Update { kSet, kAdd };

}  // namespace pp::kernels
