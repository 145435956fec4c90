#include "kernels/cpu/masked.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {
namespace {
constexpr int64_t kRange = 256;  // of channels that a thread takes
}

template <typename N>
void EmbeddingForward(const EmbeddingForwardArgs<N>& args) {
  const int64_t channels = args.channels;
  ParallelFor(args.batch * args.tokens, [&](int64_t row, int) {
    const int64_t place = args.place != nullptr ? args.place[row] : row % args.tokens;
    const int64_t token = args.token[row] - args.first;
    const bool here = 0 <= token && token < args.vocabulary;
    N* out = args.out + row * channels;
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int64_t n = channels - c;
      Vec sum = here ? LoadUpTo(args.table + token * channels + c, n) : Broadcast(0);
      if (args.position != nullptr) sum += LoadUpTo(args.position + place * channels + c, n);
      StoreUpTo(out + c, sum, n);
    }
  });
  if (args.dropout.p > 0) {
    const int64_t elements = args.tokens * channels;
    const MaskedRange range = {0, args.batch * elements, elements};
    Dropout<N>({range, args.out, args.out, args.dropout});
  }
}

// A thread takes a range of channels of all rows, so that rows are added in order.
template <typename N>
void EmbeddingBackward(const EmbeddingBackwardArgs<N>& args) {
  const int64_t channels = args.channels;
  ParallelRanges(channels, kRange, [&](int64_t begin, int64_t end) {
    for (int64_t b = 0; b < args.batch; ++b) {
      const DropoutMask mask(args.dropout.seed, args.dropout.site,
                             args.dropout.first_sequence + static_cast<uint32_t>(b),
                             args.dropout.p);
      for (int64_t t = 0; t < args.tokens; ++t) {
        const int64_t row = b * args.tokens + t;
        const int64_t n = end - begin;
        float dout[kRange + kPhiloxWords];
        const bool drops = args.dropout.p > 0;
        if (drops) mask.Factors(t * channels + begin, n, dout);
        for (int64_t c = 0; c < n; c += kLanes) {
          const Vec v = LoadUpTo(args.dout + row * channels + begin + c, n - c);
          Store(dout + c, drops ? v * Load(dout + c) : v);
        }
        const int64_t token = args.token[row] - args.first;
        if (0 <= token && token < args.vocabulary) {
          float* dtable = args.dtable + token * channels + begin;
          for (int64_t c = 0; c < n; ++c) dtable[c] += dout[c];
        }
        if (args.dposition == nullptr) continue;
        const int64_t place = args.place != nullptr ? args.place[row] : t;
        float* dposition = args.dposition + place * channels + begin;
        for (int64_t c = 0; c < n; ++c) dposition[c] += dout[c];
      }
    }
  });
}

PP_INSTANTIATE(EmbeddingForward)
PP_INSTANTIATE(EmbeddingBackward)

}  // namespace pp::kernels::PP_ISA
