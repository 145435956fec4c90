// Rotary position embedding on a GPU. Memory-bound: two accesses per element; the angles of a token
// come from the first-level cache, for all of its heads.
//
// A block takes a token; a thread takes a pack of a head's lower half and its counterpart in the
// upper half.
#include "kernels/cuda/elements_cuda.h"
#include "kernels/rope.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kThreads = 128;

template <typename N, int kSize>
__global__ void __launch_bounds__(kThreads) TurnHeads(RopeArgs<N> a) {
  const int64_t half = a.head_dim / 2;
  const int64_t t = a.position != nullptr ? a.position[BlockX()] : BlockX() % a.tokens;
  const int packs = static_cast<int>(half / kSize), all = static_cast<int>(a.heads) * packs;
  const float *cosine = a.cosine + t * half, *sine = a.sine + t * half;
  const float sign = a.turn == Turn::kForward ? 1 : -1;
  for (int at = Thread(); at < all; at += kThreads) {
    const int head = at / packs, i = (at - head * packs) * kSize;
    N* x = a.x + BlockX() * a.row_stride + head * a.head_dim + i;
    const auto c = LoadPack<kSize>(cosine + i), s = LoadPack<kSize>(sine + i);
    auto low = LoadFloats<kSize>(x);
    auto high = LoadFloats<kSize>(x + half);
    for (int j = 0; j < kSize; ++j) {
      const float turn = sign * s.at[j], was = low.at[j];
      low.at[j] = was * c.at[j] - high.at[j] * turn;
      high.at[j] = high.at[j] * c.at[j] + was * turn;
    }
    StoreFloats(x, low);
    StoreFloats(x + half, high);
  }
}

}  // namespace

template <typename N>
void Rope(const RopeArgs<N>& args, Stream stream) {
  constexpr int kSize = kPackSize<N>;
  const Access access = Both(AccessOf(args.x, args.cosine, args.sine),
                             AccessOfRows<kSize>(args.head_dim / 2, args.row_stride));
  const Grid grid = {.x = args.batch * args.tokens, .threads = kThreads};
  if (access == Access::kPacks) {
    Launch<TurnHeads<N, kSize>>(grid, stream, args);
  } else {
    Launch<TurnHeads<N, 1>>(grid, stream, args);
  }
}
PP_INSTANTIATE_CUDA(Rope)

}  // namespace pp::kernels::cuda
