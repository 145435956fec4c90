#include <math.h>

#include "kernels/isa.h"
#include "kernels/parallel.h"
#include "kernels/philox.h"

namespace pp::kernels::PP_ISA {
namespace {

// Two normals from two words (Box and Muller). In doubles and rounded once, so that the instruction
// set makes no difference.
void Normals(uint32_t first, uint32_t second, float std, float* out) {
  const double u = (first + 0.5) * 0x1p-32, turn = second * 0x1p-32;
  const double radius = std * sqrt(-2 * log(u)), angle = 2 * 3.14159265358979323846 * turn;
  out[0] = static_cast<float>(radius * cos(angle));
  out[1] = static_cast<float>(radius * sin(angle));
}

}  // namespace

void RandomNormal(const RandomNormalArgs& args) {
  constexpr int64_t kBlock = 4096;
  const PhiloxKey key = {args.seed, args.tensor, 0xffffffffu};
  const int64_t last = args.first_element + args.n, start = args.first_element / 4 * 4;
  ParallelRanges(last - start, kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t i = start + begin; i < start + end; i += kPhiloxWords) {
      Word words[2];
      uint32_t lanes[kPhiloxWords];
      float normals[kPhiloxWords];
      Philox(key, static_cast<uint64_t>(i) / 4, words);
      StoreWord(lanes, words[0]);
      StoreWord(lanes + kLanes, words[1]);
      for (int j = 0; j < kPhiloxWords; j += 2)
        Normals(lanes[j], lanes[j + 1], args.std, normals + j);
      for (int j = 0; j < kPhiloxWords; ++j) {
        if (i + j >= args.first_element && i + j < last)
          args.out[i + j - args.first_element] = normals[j];
      }
    }
  });
}

}  // namespace pp::kernels::PP_ISA
