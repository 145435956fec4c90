// Draws a token on a GPU: one block, for one row of logits per token of a text. Its scores are
// those of the CPU, in doubles: a float near 1 has no digits left of -log u, and the tokens must be
// the same.
#include <limits>

#include "kernels/block/block.h"
#include "kernels/cuda/philox_cuda.h"
#include "kernels/draw.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarp;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

struct Best {
  float score;
  int token;  // -1: none
};

// Of equal ones the first. Two empty ones are the same.
__device__ Best Better(Best a, Best b) {
  return b.score > a.score || (b.score == a.score && b.token < a.token) ? b : a;
}

__device__ float Score(float logit, float temperature, uint32_t word) {
  if (!(temperature > 0)) return logit;
  const double u = (word + 0.5) * 0x1p-32;
  return static_cast<float>(logit / static_cast<double>(temperature) - log(-log(u)));
}

// A thread takes every 512th group of four tokens, in order.
template <typename N>
__global__ void __launch_bounds__(kThreads) DrawBest(DrawArgs<N> a) {
  auto& of_warps = Shared<Best[kWarps]>();
  Best mine = {kLowest, -1};
  const int64_t last = a.first + a.n;
  for (int64_t begin = a.first / 4 * 4 + Thread() * 4; begin < last; begin += kThreads * 4) {
    uint32_t words[4];
    Philox(a.seed, static_cast<uint64_t>(begin) / 4, a.number, 0xfffffffeu, words);
    for (int j = 0; j < 4; ++j) {
      const int64_t token = begin + j;
      if (token < a.first || token >= last) continue;
      const float score = Score(ToFloat(a.logits[token - a.first]), a.temperature, words[j]);
      if (score > mine.score) mine = {score, static_cast<int>(token)};
    }
  }
  for (int mask = kWarp / 2; mask > 0; mask /= 2)
    mine = Better(mine, {ShuffleXor(mine.score, mask), ShuffleXor(mine.token, mask)});
  if (Lane() == 0) of_warps[Warp()] = mine;
  SyncBlock();
  if (Thread() != 0) return;
  for (const Best& best : of_warps) mine = Better(mine, best);
  a.best[0] = mine.score;
  a.best[1] = static_cast<float>(mine.token);
}

__global__ void JoinParts(DrawJoinArgs a) {
  if (Thread() != 0) return;
  const float* best = a.best;
  for (int64_t part = 1; part < a.parts; ++part)
    if (a.best[part * a.stride] > best[0]) best = a.best + part * a.stride;
  *a.token = best[1];
}

}  // namespace

template <typename N>
void Draw(const DrawArgs<N>& args, Stream stream) {
  Launch<DrawBest<N>>({.threads = kThreads, .shared = sizeof(Best[kWarps])}, stream, args);
}
PP_INSTANTIATE_CUDA(Draw)

void DrawJoin(const DrawJoinArgs& args, Stream stream) {
  Launch<JoinParts>({.threads = kWarp}, stream, args);
}

}  // namespace pp::kernels::cuda
