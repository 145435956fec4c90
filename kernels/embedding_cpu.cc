#include "kernels/isa.h"
#include "kernels/masked.h"

namespace pp::kernels::PP_ISA {

void EmbeddingForward(const EmbeddingForwardArgs& args) {
  const int64_t channels = args.channels;
  ParallelFor(args.batch * args.tokens, [&](int64_t row, int) {
    const int64_t t = row % args.tokens;
    const int64_t token = args.token[row] - args.first;
    const bool here = 0 <= token && token < args.vocabulary;
    float* out = args.out + row * channels;
    if (here) {
      const float* from = args.table + token * channels;
      for (int64_t c = 0; c < channels; ++c) out[c] = from[c];
    } else {
      for (int64_t c = 0; c < channels; ++c) out[c] = 0;
    }
    if (args.position == nullptr) return;
    const float* position = args.position + t * channels;
    for (int64_t c = 0; c < channels; ++c) out[c] += position[c];
  });
  if (args.dropout.p > 0) {
    const int64_t elements = args.tokens * channels;
    Dropout({.range = {0, args.batch * elements, elements},
             .x = args.out,
             .out = args.out,
             .dropout = args.dropout});
  }
}

// A thread takes a range of channels of all rows, so that rows are added in order.
void EmbeddingBackward(const EmbeddingBackwardArgs& args) {
  constexpr int64_t kRange = 256;
  const int64_t channels = args.channels;
  ParallelRanges(channels, kRange, [&](int64_t begin, int64_t end) {
    for (int64_t b = 0; b < args.batch; ++b) {
      const DropoutMask mask(args.dropout.seed, args.dropout.site,
                             args.dropout.first_sequence + static_cast<uint32_t>(b),
                             args.dropout.p);
      for (int64_t t = 0; t < args.tokens; ++t) {
        const int64_t row = b * args.tokens + t;
        const int64_t n = end - begin;
        const float* dout = args.dout + row * channels + begin;
        float masked[kRange + kPhiloxWords];
        if (args.dropout.p > 0) {
          mask.Factors(t * channels + begin, n, masked);
          for (int64_t c = 0; c < n; ++c) masked[c] *= dout[c];
          dout = masked;
        }
        const int64_t token = args.token[row] - args.first;
        if (0 <= token && token < args.vocabulary) {
          float* dtable = args.dtable + token * channels + begin;
          for (int64_t c = 0; c < n; ++c) dtable[c] += dout[c];
        }
        if (args.dposition == nullptr) continue;
        float* dposition = args.dposition + t * channels + begin;
        for (int64_t c = 0; c < n; ++c) dposition[c] += dout[c];
      }
    }
  });
}

}  // namespace pp::kernels::PP_ISA
