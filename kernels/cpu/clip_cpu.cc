#include <math.h>

#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {

void Clip(const ClipArgs& args) {
  double sum = 0;
  for (int64_t i = 0; i < args.blocks; ++i) sum += args.norm[i];
  *args.clipped = {};
  FinishClip(args, sqrt(sum));
}

}  // namespace pp::kernels::PP_ISA
