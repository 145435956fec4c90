#include <math.h>

#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {

void Clip(const ClipArgs& args) {
  double sum = 0;
  for (int64_t i = 0; i < args.blocks; ++i) sum += args.norm[i];
  const double norm = sqrt(sum);
  args.norm[args.blocks] = norm;
  const bool clips = args.most > 0 && norm > args.most;
  args.clipped->scale = static_cast<float>(clips ? args.most / (norm + 1e-6) : 1);
  args.clipped->finite = norm - norm == 0 ? 1 : 0;
}

}  // namespace pp::kernels::PP_ISA
