#include "kernels/cpu/philox.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {

template <typename N>
void Draw(const DrawArgs<N>& args) {
  const PhiloxKey key = {args.seed, args.number, 0xfffffffeu};
  args.best[0] = -__builtin_inff();
  args.best[1] = -1;
  const int64_t last = args.first + args.n;
  for (int64_t token = args.first / 4 * 4; token < last; token += kPhiloxWords) {
    Word words[2];
    uint32_t lanes[kPhiloxWords];
    Philox(key, static_cast<uint64_t>(token) / 4, words);
    StoreWord(lanes, words[0]);
    StoreWord(lanes + kLanes, words[1]);
    for (int j = 0; j < kPhiloxWords; ++j) {
      if (token + j < args.first || token + j >= last) continue;
      float score = ToFloat(args.logits[token + j - args.first]);
      if (args.temperature > 0) {
        const double u = (lanes[j] + 0.5) * 0x1p-32;
        score = static_cast<float>(score / static_cast<double>(args.temperature) -
                                   __builtin_log(-__builtin_log(u)));
      }
      if (!(score > args.best[0])) continue;
      args.best[0] = score;
      args.best[1] = static_cast<float>(token + j);
    }
  }
}

PP_INSTANTIATE(Draw)

void DrawJoin(const DrawJoinArgs& args) {
  const float* best = args.best;
  for (int64_t part = 1; part < args.parts; ++part)
    if (args.best[part * args.stride] > best[0]) best = args.best + part * args.stride;
  *args.token = best[1];
}

}  // namespace pp::kernels::PP_ISA
