// Which tiles attention computes, seen by what it does not touch: with a list of first keys, NaNs
// in tokens that others do not see change none of their bits. A score that is computed and then
// hidden would make them NaNs, as 0 times NaN is one.
#include <algorithm>
#include <cmath>

#include "tests/kernels/first_key_lists.h"
#include "tests/kernels/half_numbers.h"

namespace pp::kernels {
namespace {

template <typename N>
std::vector<N> Narrowed(const Floats& x) {
  if constexpr (std::is_same_v<N, float>) {
    return x;
  } else {
    return Narrow<N>(x);
  }
}
template <typename N>
Floats Widened(const std::vector<N>& x) {
  if constexpr (std::is_same_v<N, float>) {
    return x;
  } else {
    return Widen(x);
  }
}

// Tokens [begin, end) of each sequence.
struct Range {
  int64_t begin = 0, end = 0;
};

struct Results {
  Floats out, lse, dqkv;
};

// With NaNs in the poisoned tokens' queries, keys, values and gradients.
template <typename N>
Results Run(const CpuKernels& kernels, const AttentionShape& s, const DropoutKey& key,
            const FirstKeyList& first, const Range& poisoned = {}) {
  const int64_t rows = s.batch * s.tokens, width = 3 * s.heads * s.head_dim, c = width / 3;
  Floats qkv = Numbers(rows * width, 1), dout = Numbers(rows * c, 2);
  for (int64_t b = 0; b < s.batch; ++b)
    for (Floats* x : {&qkv, &dout}) {
      const int64_t each = static_cast<int64_t>(x->size()) / rows, at = b * s.tokens;
      std::fill(x->begin() + (at + poisoned.begin) * each, x->begin() + (at + poisoned.end) * each,
                std::nanf(""));
    }
  const std::vector<N> in = Narrowed<N>(qkv), d = Narrowed<N>(dout);
  std::vector<N> out(d.size()), dqkv(in.size());
  Floats lse(rows * s.heads);
  Scratch scratch(cpu::AttentionScratchBytes<N>(s));
  kernels.AttentionForward(AttentionForwardArgs<N>{s, in.data(), out.data(), lse.data(), key,
                                                   first.keys(), scratch.get(), scratch.helpers()});
  kernels.AttentionBackward(AttentionBackwardArgs<N>{s, in.data(), out.data(), lse.data(), d.data(),
                                                     dqkv.data(), key, first.keys(), scratch.get(),
                                                     scratch.helpers()});
  return {Widened(out), lse, Widened(dqkv)};
}

// Whether they have the same bits in these tokens. `x` and `y` are [outer][tokens][each].
bool SameTokens(const Floats& x, const Floats& y, int64_t tokens, int64_t each,
                const Range& tokens_of) {
  for (auto at = x.begin(); at != x.end(); at += tokens * each) {
    const Floats some(at + tokens_of.begin * each, at + tokens_of.end * each);
    const auto other = y.begin() + (at - x.begin());
    if (!SameBits(some, Floats(other + tokens_of.begin * each, other + tokens_of.end * each)))
      return false;
  }
  return true;
}

// One number for each of out, lse and dqkv: 1 if they are the same in these tokens.
void AddSameTokens(Comparison& result, const AttentionShape& s, const Results& x, const Results& y,
                   const Range& range) {
  const int64_t c = s.heads * s.head_dim;
  result.AddOne(SameTokens(x.out, y.out, s.tokens, c, range) ? 1 : 0, 1, 0);
  result.AddOne(SameTokens(x.lse, y.lse, s.tokens, 1, range) ? 1 : 0, 1, 0);
  result.AddOne(SameTokens(x.dqkv, y.dqkv, s.tokens, 3 * c, range) ? 1 : 0, 1, 0);
  for (const Floats* some : {&x.out, &x.lse, &x.dqkv}) {
    const auto finite = [](float number) { return std::isfinite(number); };
    result.AddOne(std::all_of(some->begin(), some->end(), finite) ? 1 : 0, 1, 0);
  }
}

}  // namespace

template <typename N>
Comparison AttentionTiles(const CpuKernels& kernels) {
  Comparison result;
  constexpr int64_t kTokens = 320;
  for (const int64_t dim : {8, 64, 80, 128})
    for (const DropoutKey& key : kDropouts) {
      const AttentionShape s = {dim == 8 ? 2 : 1, kTokens, 1, dim};
      // Documents that meet where all tiles do.
      const FirstKeyList documents = DocumentsAt(kTokens, {0, 192});
      const Results both = Run<N>(kernels, s, key, documents);
      for (const auto& [poisoned, range] :
           {std::pair{Range{0, 192}, Range{192, kTokens}}, {{192, kTokens}, {0, 192}}})
        AddSameTokens(result, s, both, Run<N>(kernels, s, key, documents, poisoned), range);
      // A window: what is further away than it and a tile, of 48 or 64 keys.
      const FirstKeyList window = WindowOf(kTokens, 64);
      const Results all = Run<N>(kernels, s, key, window);
      for (const auto& [poisoned, range] :
           {std::pair{Range{0, 64}, Range{192, kTokens}}, {{288, kTokens}, {0, 192}}})
        AddSameTokens(result, s, all, Run<N>(kernels, s, key, window, poisoned), range);
      // A list that hides nothing has the bits of none.
      const AttentionShape few = {2, 150, 2, dim};
      const Results none = Run<N>(kernels, few, key, {});
      for (const FirstKeyList& list :
           {DocumentsAt(few.tokens, {0}), WindowOf(few.tokens, few.tokens)})
        AddSameTokens(result, few, none, Run<N>(kernels, few, key, list), {0, few.tokens});
    }
  return result;
}

#define PP_OF(N, ...) template Comparison AttentionTiles<N>(const CpuKernels& kernels);
PP_ACTIVATIONS(PP_OF)

}  // namespace pp::kernels
