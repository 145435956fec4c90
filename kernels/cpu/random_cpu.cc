// Compiled without fused operations, so that weights are the same on every processor.
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/philox.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {
namespace {

// log((word + 1/2) / 2^32), to about 1e-12.
//
// The value is 2^e * m with m in [sqrt(1/2), sqrt(2)), and log m = 2 artanh f, f = (m-1)/(m+1).
PP_INLINE double LogOfUniform(uint32_t word) {
  const double u = (word + 0.5) * 0x1p-32;
  uint64_t bits;
  __builtin_memcpy(&bits, &u, sizeof(bits));
  const uint64_t kRootHalf = 0x3fe6a09e667f3bcd;  // sqrt(1/2) as bits
  const int64_t exponent = static_cast<int64_t>(bits - kRootHalf) >> 52;
  bits -= static_cast<uint64_t>(exponent) << 52;
  double m;
  __builtin_memcpy(&m, &bits, sizeof(m));
  const double f = (m - 1) / (m + 1), g = f * f;
  const double series =
      1 + g * (1.0 / 3 + g * (1.0 / 5 + g * (1.0 / 7 + g * (1.0 / 9 + g * (1.0 / 11 + g / 13)))));
  return static_cast<double>(exponent) * 0.69314718055994531 + 2 * f * series;
}

struct Direction {
  double cosine, sine;
};

// Of the angle 2 pi word / 2^32, to about 1e-12: Taylor series around the nearest quarter turn.
PP_INLINE Direction DirectionOf(uint32_t word) {
  const uint32_t quarter = (word + (1u << 29)) >> 30;
  const double x =
      static_cast<int32_t>(word - (quarter << 30)) * (0x1p-31 * 3.14159265358979323846);
  const double g = x * x;
  const double sine =
      x * (1 - g / 6 * (1 - g / 20 * (1 - g / 42 * (1 - g / 72 * (1 - g / 110 * (1 - g / 156))))));
  const double cosine =
      1 - g / 2 * (1 - g / 12 * (1 - g / 30 * (1 - g / 56 * (1 - g / 90 * (1 - g / 132)))));
  const double along = quarter & 1 ? sine : cosine, across = quarter & 1 ? cosine : sine;
  return {(quarter + 1) & 2 ? -along : along, quarter & 2 ? -across : across};
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
      for (int j = 0; j < kPhiloxWords; j += 2) {
        const double radius = args.std * __builtin_sqrt(-2 * LogOfUniform(lanes[j]));
        const Direction direction = DirectionOf(lanes[j + 1]);
        normals[j] = static_cast<float>(radius * direction.cosine);
        normals[j + 1] = static_cast<float>(radius * direction.sine);
      }
      for (int j = 0; j < kPhiloxWords; ++j) {
        const int64_t at = i + j - args.first_element;
        if (at >= 0 && at < args.n) args.out[at] = normals[j];
      }
    }
  });
}

}  // namespace pp::kernels::PP_ISA
