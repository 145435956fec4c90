// Where GPU kernels are launched: kernels::cuda::NAME(args, stream) puts kernels into the stream
// and returns. All addresses are the device's, aligned to 16 bytes; what they point to, scratch
// included, belongs to the kernels until the stream has completed them.
#pragma once

namespace pp::kernels::cuda {

// A cudaStream_t; null: the device's own one.
using Stream = void*;

}  // namespace pp::kernels::cuda
