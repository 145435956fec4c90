// The classifier on a GPU. Memory-bound: the forward reads each element from memory once and writes
// its gradient once, if shared memory can hold a row meanwhile; if not, it reads it again, from the
// caches, as far as they hold it. The backward reads and writes it once.
//
// A block takes a row. In the forward a thread goes over every 512th group of eight elements once
// and keeps the largest so far and the sum of exp(x - largest), which it rescales when a larger one
// comes (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018); the threads'
// results are then joined, and each thread computes the gradient of what it has read: no other
// thread needs its groups, nor a barrier that says that they have come. The order of a row's sums,
// and so their bits, are the same whether it is held or not. The losses of the rows are added by
// one block, in doubles: a single row's is small compared with the sum of all.
#include <limits>

#include "kernels/block/mma.h"
#include "kernels/cross_entropy.h"
#include "kernels/cuda/block_sum_cuda.h"
#include "kernels/cuda/elements_cuda.h"
#include "kernels/cuda/fast_math.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kRowThreads = 512, kRowWarps = kRowThreads / kWarp;
constexpr int kLossThreads = 1024;
constexpr int kGroup = 8;  // for all types, so that all are added in the same order
constexpr int kStep = kRowThreads * kGroup;  // elements from a thread's group to its next one
// Groups of a held row that a thread has copied before it needs them: 64 KB of a block, which even
// alone on a multiprocessor has enough on their way (some 40 KB).
constexpr int kAhead = 8;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// The largest of some elements, and the sum of exp(x - largest). A NaN or an infinity is lost in
// the first, but not in the second.
struct Statistics {
  float largest, sum;
};

// What is subtracted from an exponent: not the infinity that means that there is no element.
__device__ float Shift(float largest) { return largest == kLowest ? 0 : largest; }

__device__ Statistics Join(Statistics a, Statistics b) {
  const float largest = a.largest > b.largest ? a.largest : b.largest, shift = Shift(largest);
  return {largest, a.sum * FastExp(a.largest - shift) + b.sum * FastExp(b.largest - shift)};
}

__device__ Statistics Join(Statistics a, const Pack<float, kGroup>& x) {
  float largest = a.largest;
  for (const float number : x.at) largest = number > largest ? number : largest;
  const float shift = Shift(largest);
  float sum = a.sum * FastExp(a.largest - shift);
  for (const float number : x.at) sum += FastExp(number - shift);
  return {largest, sum};
}

struct alignas(16) RowShared {
  Statistics of_warps[kRowWarps];
  float largest, log_sum;  // of the row
};

// Whether the row is in shared memory, behind RowShared, from its first use to its last.
enum class Held { kNo, kYes };

template <typename N>
constexpr int64_t HeldBytes(int64_t n) {
  return static_cast<int64_t>(sizeof(RowShared)) + CeilDiv(n, kGroup) * kGroup * sizeof(N);
}
template <typename N>
__device__ N* HeldRow() {
  return reinterpret_cast<N*>(&Shared<RowShared>() + 1);
}

// Starts to copy a group, of which the row has the first `left` elements.
template <typename N>
__device__ void CopyGroup(const N* from, int64_t left, N* to) {
  constexpr int kSize = kPackSize<N>;
  PP_UNROLL
  for (int j = 0; j < kGroup; j += kSize) {
    const int64_t elements = left - j < kSize ? left - j : kSize;
    if (elements > 0) CopyAsync<16>(from + j, static_cast<int>(elements * sizeof(N)), to + j);
  }
  CommitCopies();
}

// Of a thread's groups of a row.
template <Access kAccess, Held kHeld, typename N>
__device__ Statistics OfGroups(const N* x, int64_t n) {
  Statistics mine = {kLowest, 0};
  if constexpr (kHeld == Held::kYes) {
    N* held = HeldRow<N>();
    int64_t next = Thread() * kGroup;
    for (int i = 0; i < kAhead; ++i, next += kStep) CopyGroup(x + next, n - next, held + next);
    for (int64_t i = Thread() * kGroup; i < n; i += kStep, next += kStep) {
      CopyGroup(x + next, n - next, held + next);
      WaitForCopies<kAhead>();
      mine = Join(mine, LoadFirst<kGroup, kAccess>(held + i, n - i, kLowest));
    }
  } else {
    for (int64_t i = Thread() * kGroup; i < n; i += kStep)
      mine = Join(mine, LoadFirst<kGroup, kAccess>(x + i, n - i, kLowest));
  }
  return mine;
}

// Of a row; the result is in the first thread. All threads have read, or hold, theirs.
template <Access kAccess, Held kHeld, typename N>
__device__ Statistics OfRow(const N* x, int64_t n) {
  auto& of_warps = Shared<RowShared>().of_warps;
  Statistics mine = OfGroups<kAccess, kHeld>(x, n);
  for (int mask = kWarp / 2; mask > 0; mask /= 2)
    mine = Join(mine, Statistics{ShuffleXor(mine.largest, mask), ShuffleXor(mine.sum, mask)});
  if (Lane() == 0) of_warps[Warp()] = mine;
  SyncBlock();
  for (int w = 1; w < kRowWarps && Thread() == 0; ++w) mine = Join(mine, of_warps[w]);
  return mine;
}

template <typename Args>
__device__ float ScaleOf(const Args& a) {
  return a.scaling != nullptr ? a.scale * a.scaling->scale : a.scale;
}

// dlogits of a row: of `tokens`, and zeros up to `end`. A thread reads all that it writes before it
// writes it, the target's logit included. What was read last comes first: it is still in a cache.
template <Access kAccess, typename N>
__device__ void Gradient(const N* x, int64_t tokens, int64_t end, int64_t target, float largest,
                         float log_sum, float scale, N* out) {
  for (int64_t i = end / kStep * kStep + Thread() * kGroup; i >= 0; i -= kStep) {
    if (i >= end) continue;
    auto d = LoadFirst<kGroup, kAccess>(x + i, tokens - i, 0);
    for (int j = 0; j < kGroup; ++j) {
      const float part = FastExp(d.at[j] - largest - log_sum) * scale;
      // Rounded once: what remains of the target's 1 can be small.
      d.at[j] = i + j >= tokens ? 0 : i + j == target ? part - scale : part;
    }
    StoreFirst<kAccess>(out + i, d, end - i);
  }
}

template <Access kAccess, Held kHeld, typename N>
__global__ void __launch_bounds__(kRowThreads)
    Forward(CrossEntropyForwardArgs<N> a, int64_t stride) {
  const int64_t row = BlockX(), target = a.target[row];
  const N* logits = a.logits + row * stride;
  const int64_t tokens = target == kIgnored ? 0 : a.vocabulary;
  const Statistics mine = OfRow<kAccess, kHeld>(logits, tokens);
  const N* x = kHeld == Held::kYes ? HeldRow<N>() : logits;
  auto& shared = Shared<RowShared>();
  if (Thread() == 0) {
    const float largest = mine.largest, log_sum = logf(mine.sum);
    a.losses[row] = tokens == 0 ? 0 : static_cast<double>(largest) - ToFloat(x[target]) + log_sum;
    shared.largest = largest, shared.log_sum = log_sum;
  }
  if (a.dlogits == nullptr) return;
  SyncBlock();
  Gradient<kAccess>(x, tokens, a.vocabulary + a.padding, target, shared.largest, shared.log_sum,
                    ScaleOf(a), a.dlogits + row * stride);
}

template <Access kAccess, typename N>
__global__ void __launch_bounds__(kRowThreads) Part(CrossEntropyPartArgs<N> a, int64_t stride) {
  const int64_t row = BlockX();
  const N* x = a.logits + row * stride;
  const bool ignored = a.target[row] == kIgnored;
  const Statistics all = OfRow<kAccess, Held::kNo>(x, ignored ? 0 : a.vocabulary);
  if (Thread() != 0) return;
  const int64_t target = a.target[row] - a.first;
  const bool here = !ignored && 0 <= target && target < a.vocabulary;
  float* part = a.part + 3 * row;
  part[0] = all.largest, part[1] = all.sum;
  part[2] = here ? ToFloat(x[target]) : 0;
}

// One block: a thread takes every 1024th row, both here and in the next kernel.
__global__ void __launch_bounds__(kLossThreads)
    AddLosses(int64_t rows, const double* losses, double* loss) {
  double mine = 0;
  for (int64_t row = Thread(); row < rows; row += kLossThreads) mine += losses[row];
  const double all = BlockSum<kLossThreads>(mine);
  if (Thread() == 0) *loss = all;
}

__global__ void __launch_bounds__(kLossThreads) JoinParts(CrossEntropyJoinArgs a) {
  double mine = 0;
  for (int64_t row = Thread(); row < a.rows; row += kLossThreads) {
    const bool ignored = a.target[row] == kIgnored;
    Statistics all = {kLowest, 0};
    float target = 0;
    for (int64_t p = 0; p < a.parts && !ignored; ++p) {
      const float* part = a.all + 3 * (p * a.rows + row);
      all = Join(all, Statistics{part[0], part[1]});
      target += part[2];
    }
    const float largest = ignored ? 0 : all.largest, log_sum = ignored ? 0 : logf(all.sum);
    a.statistics[2 * row] = largest, a.statistics[2 * row + 1] = log_sum;
    if (!ignored) mine += static_cast<double>(largest) - target + log_sum;
  }
  const double loss = BlockSum<kLossThreads>(mine);
  if (Thread() == 0 && a.loss != nullptr) *a.loss = loss;
}

template <Access kAccess, typename N>
__global__ void __launch_bounds__(kRowThreads)
    Backward(CrossEntropyBackwardArgs<N> a, int64_t stride) {
  const int64_t row = BlockX();
  N* x = a.logits + row * stride;
  Gradient<kAccess>(x, a.target[row] == kIgnored ? 0 : a.vocabulary, a.vocabulary + a.padding,
                    a.target[row] - a.first, a.statistics[2 * row], a.statistics[2 * row + 1],
                    ScaleOf(a), x);
}

// Launches kernel.template operator()<Access>() for the rows of args.
template <typename Args, typename Kernel>
void ForRows(const Args& args, int64_t shared, const Kernel& kernel) {
  const int64_t stride = args.row_stride != 0 ? args.row_stride : args.vocabulary;
  const Grid grid = {.x = args.rows, .threads = kRowThreads, .shared = shared};
  Access access = Both(AccessOf(args.logits), AccessOfRows<kGroup>(stride));
  if constexpr (requires { args.dlogits; }) access = Both(access, AccessOf(args.dlogits));
  access == Access::kPacks ? kernel.template operator()<Access::kPacks>(grid, stride)
                           : kernel.template operator()<Access::kSingle>(grid, stride);
}

constexpr int64_t kRowShared = sizeof(RowShared);

}  // namespace

template <typename N>
void CrossEntropyForward(const CrossEntropyForwardArgs<N>& args, Stream stream) {
  const int64_t held = HeldBytes<N>(args.vocabulary);
  const bool holds = args.dlogits != nullptr && held <= MostShared();
  ForRows(args, kRowShared, [&]<Access kAccess>(Grid grid, int64_t stride) {
    if (kAccess == Access::kPacks && holds) {
      grid.shared = held;
      Launch<Forward<Access::kPacks, Held::kYes, N>>(grid, stream, args, stride);
    } else {
      Launch<Forward<kAccess, Held::kNo, N>>(grid, stream, args, stride);
    }
    if (args.loss == nullptr) return;
    Launch<AddLosses>({.threads = kLossThreads, .shared = sizeof(BlockSums<kLossThreads>)}, stream,
                      args.rows, static_cast<const double*>(args.losses), args.loss);
  });
}
PP_INSTANTIATE_CUDA(CrossEntropyForward)

template <typename N>
void CrossEntropyPart(const CrossEntropyPartArgs<N>& args, Stream stream) {
  ForRows(args, kRowShared, [&]<Access kAccess>(const Grid& grid, int64_t stride) {
    Launch<Part<kAccess, N>>(grid, stream, args, stride);
  });
}
PP_INSTANTIATE_CUDA(CrossEntropyPart)

void CrossEntropyJoin(const CrossEntropyJoinArgs& args, Stream stream) {
  Launch<JoinParts>({.threads = kLossThreads, .shared = sizeof(BlockSums<kLossThreads>)}, stream,
                    args);
}

template <typename N>
void CrossEntropyBackward(const CrossEntropyBackwardArgs<N>& args, Stream stream) {
  ForRows(args, 0, [&]<Access kAccess>(const Grid& grid, int64_t stride) {
    Launch<Backward<kAccess, N>>(grid, stream, args, stride);
  });
}
PP_INSTANTIATE_CUDA(CrossEntropyBackward)

}  // namespace pp::kernels::cuda
