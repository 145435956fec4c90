// The performance of each kernel in a GPT-2 124M step of 256 tokens, on one thread: milliseconds,
// GFLOP/s and GB/s of memory that it must touch, compared with a plain copy; and of those that a
// LLaMA has instead. Matrix products compared with oneDNN and the processor's peak of fused
// multiply-adds, with operands in the caches and with cold ones, and on two threads. The last rows:
// attention with a window of a quarter of a sequence.
//
//   bazel run //kernels:bench [-- TOKENS [SEQUENCE]]
#include <fmt/format.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <memory>
#include <string>
#include <vector>

#include "kernels/isa.h"
#include "kernels/threads.h"

namespace pp::kernels {
namespace {

constexpr int64_t kChannels = 768, kHeads = 12, kVocabulary = 50257, kLayers = 12;
constexpr int kRepeats = 8;

struct Free {
  void operator()(float* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<float, Free>;

// n floats, a few thousand different small values, in large pages, as in the runtime's arena.
Buffer Make(int64_t n) {
  constexpr size_t kPage = size_t{1} << 21;
  const size_t bytes = (n * 4 + kPage - 1) / kPage * kPage;
  auto* p = static_cast<float*>(std::aligned_alloc(kPage, bytes));
  madvise(p, bytes, MADV_HUGEPAGE);
  for (int64_t i = 0; i < n; ++i) p[i] = static_cast<float>(i * 7919 % 4001) * 5e-4f - 1;
  return Buffer(p);
}

// The same number of BFloat16s.
Buffer MakeHalf(int64_t n) {
  Buffer floats = Make(n);
  auto* half = reinterpret_cast<uint16_t*>(floats.get());
  for (int64_t i = 0; i < n; ++i) half[i] = half[2 * i + 1];
  return floats;
}

double SecondsOf(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Time of this thread, so that other load on the machine counts less.
double Now() { return SecondsOf(CLOCK_THREAD_CPUTIME_ID); }
// For work of several threads.
double Wall() { return SecondsOf(CLOCK_MONOTONIC); }

// A bare loop of fused multiply-adds in twelve registers, as wide as the processor's vectors:
// FLOP/s of one thread.
template <typename Step>
double FlopsOf(int lanes, const Step& step) {
  constexpr int kSteps = 200000, kRegisters = 12;
  double best = 1e9;
  for (int i = 0; i < 5 * kRepeats; ++i) {
    const double begin = Now();
    step(kSteps);
    best = std::min(best, Now() - begin);
  }
  return 2.0 * lanes * kRegisters * kSteps / best;
}

#define PP_TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
__attribute__((target("avx512f"))) void Fma512(int steps) {
#define PP_FMA(i) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #i "\n\t"
  for (int i = 0; i < steps; ++i) asm volatile(PP_TWELVE(PP_FMA)::: "memory");
#undef PP_FMA
}
__attribute__((target("fma"))) void Fma256(int steps) {
#define PP_FMA(i) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #i "\n\t"
  for (int i = 0; i < steps; ++i) asm volatile(PP_TWELVE(PP_FMA)::: "memory");
#undef PP_FMA
}

double PeakFlops() {
  if (__builtin_cpu_supports("avx512f")) return FlopsOf(16, Fma512);
  if (__builtin_cpu_supports("fma")) return FlopsOf(8, Fma256);
  return NAN;
}

// Evicts n floats from all caches.
void MakeCold(const float* p, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) __builtin_ia32_clflush(p + i);
  __builtin_ia32_mfence();
}

template <typename F>
double Seconds(const F& f) {
  const double start = Now();
  f();
  return Now() - start;
}

template <typename F>
double BestSeconds(const F& f) {
  double best = 1e9;
  for (int i = 0; i < kRepeats; ++i) best = std::min(best, Seconds(f));
  return best;
}

// Sums up a step: `times` is how often a kernel runs in it.
class Table {
 public:
  void Row(const char* name, int64_t times, double seconds, double flops, double bytes) {
    total_ += times * seconds;
    fmt::print("{:28} {:3} x {:9.3f} ms {:8.1f} GF/s {:8.1f} GB/s\n", name, times, seconds * 1e3,
               flops / seconds * 1e-9, bytes / seconds * 1e-9);
  }
  double total() const { return total_; }

 private:
  double total_ = 0;
};

// oneDNN on the same product: its sgemm, which is faster than its matmul primitive.
double OneDnnSeconds(const MatmulShape& s, const MatmulArgs& args) {
  const bool tn = s.operands == Operands::kTN, nt = s.operands == Operands::kNT;
  return Seconds([&] {
    dnnl_sgemm(tn ? 'T' : 'N', nt ? 'T' : 'N', s.m, s.n, s.k, 1, static_cast<const float*>(args.a),
               tn ? s.m : s.k, static_cast<const float*>(args.b), nt ? s.k : s.n,
               s.update == Update::kAdd, static_cast<float*>(args.c), s.n);
  });
}

struct Product {
  const char* name;
  int64_t times;
  MatmulShape shape;
};

double Matmuls(int64_t tokens, double peak) {
  constexpr int64_t c = kChannels;
  const auto nn = Operands::kNN, nt = Operands::kNT, tn = Operands::kTN;
  const auto set = Update::kSet, add = Update::kAdd;
  const Product products[] = {
      {"qkv", kLayers, {tokens, 3 * c, c, nn, set}},
      {"proj", kLayers, {tokens, c, c, nn, set}},
      {"fc", kLayers, {tokens, 4 * c, c, nn, set}},
      {"fcproj", kLayers, {tokens, c, 4 * c, nn, set}},
      {"qkv dx", kLayers, {tokens, c, 3 * c, nt, set}},
      {"proj dx", kLayers, {tokens, c, c, nt, set}},
      {"fc dx", kLayers, {tokens, c, 4 * c, nt, set}},
      {"fcproj dx", kLayers, {tokens, 4 * c, c, nt, set}},
      {"qkv dw", kLayers, {c, 3 * c, tokens, tn, add}},
      {"proj dw", kLayers, {c, c, tokens, tn, add}},
      {"fc dw", kLayers, {c, 4 * c, tokens, tn, add}},
      {"fcproj dw", kLayers, {4 * c, c, tokens, tn, add}},
      {"head", 1, {tokens, kVocabulary, c, nt, set}},
      {"head dx", 1, {tokens, c, kVocabulary, nn, set}},
      {"head dw", 1, {kVocabulary, c, tokens, tn, set}},
  };
  cpu::Matmul matmul, pair(2);
  const int64_t scratch_floats =
      static_cast<int64_t>(cpu::Matmul::ScratchBytes(MatmulNumbers::kBf16) / 4);
  const Buffer scratch = Make(scratch_floats), helper = Make(scratch_floats);
  double ours = 0, theirs = 0, cold = 0, two = 0, half = 0, flops_of_all = 0;
  fmt::print("{:22}      {:>10} {:>10} {:>6} {:>10} {:>6} {:>10} {:>8} {:>12}\n", "GF/s", "ms",
             "warm", "peak", "cold", "peak", "oneDNN", "bf16", "two threads");
  for (const Product& p : products) {
    const MatmulShape& s = p.shape;
    const Buffer a = Make(s.m * s.k), b = Make(s.k * s.n), out = Make(s.m * s.n);
    const MatmulArgs args = {.a = a.get(),
                             .b = b.get(),
                             .c = out.get(),
                             .scratch = scratch.get(),
                             .helpers = helper.get()};
    const int id = matmul.Prepare(s), pair_id = pair.Prepare(s);
    // With bfloat16, gradients of weights are floats, and so are weights.
    const bool sums = s.operands == Operands::kTN;
    MatmulShape half_shape = s;
    half_shape.numbers = sums ? MatmulNumbers::kBf16Sum : MatmulNumbers::kBf16;
    const Buffer half_a = MakeHalf(s.m * s.k), half_b = sums ? MakeHalf(s.k * s.n) : nullptr;
    MatmulArgs half_args = args;
    half_args.a = half_a.get();
    if (sums) half_args.b = half_b.get();
    const int half_id = matmul.Prepare(half_shape);
    double best[5] = {1e9, 1e9, 1e9, 1e9, 1e9};
    for (int i = 0; i < kRepeats;
         ++i) {  // alternating, as other load on the machine comes and goes
      best[0] = std::min(best[0], Seconds([&] { matmul.Run(id, args); }));
      best[1] = std::min(best[1], OneDnnSeconds(s, args));
      best[4] = std::min(best[4], Seconds([&] { matmul.Run(half_id, half_args); }));
      const double begin = Wall();
      pair.Run(pair_id, args);
      best[2] = std::min(best[2], Wall() - begin);
      MakeCold(a.get(), s.m * s.k), MakeCold(b.get(), s.k * s.n), MakeCold(out.get(), s.m * s.n);
      best[3] = std::min(best[3], Seconds([&] { matmul.Run(id, args); }));
    }
    const double flops = 2e-9 * s.m * s.n * s.k;
    fmt::print(
        "{:22} {:3} x {:10.3f} {:10.1f} {:6.2f} {:10.1f} {:6.2f} {:10.1f} {:8.1f} {:8.2f} of one\n",
        p.name, p.times, best[0] * 1e3, flops / best[0], 1e9 * flops / best[0] / peak,
        flops / best[3], 1e9 * flops / best[3] / peak, flops / best[1], flops / best[4],
        best[2] / best[0]);
    half += p.times * best[4];
    ours += p.times * best[0];
    theirs += p.times * best[1];
    two += p.times * best[2];
    cold += p.times * best[3];
    flops_of_all += 1e9 * p.times * flops;
  }
  fmt::print(
      "all products: {:.1f} ms, {:.2f} of the peak; cold {:.1f} ms, {:.2f}; two threads {:.2f} "
      "of one; bf16 {:.1f} ms; oneDNN {:.1f} ms\nfloor, all at the peak: {:.1f} ms\n\n",
      ours * 1e3, flops_of_all / ours / peak, cold * 1e3, flops_of_all / cold / peak, two / ours,
      half * 1e3, theirs * 1e3, flops_of_all / peak * 1e3);
  return ours;
}

// With a window of some keys, or of 0: all.
void Attention(Table& table, int64_t tokens, int64_t sequence, float p, int64_t window) {
  const AttentionShape shape = {tokens / sequence, sequence, kHeads, kChannels / kHeads};
  const int64_t n = tokens * kChannels;
  const Buffer qkv = Make(3 * n), out = Make(n), dout = Make(n), dqkv = Make(3 * n);
  const Buffer lse = Make(tokens * kHeads);
  const Buffer scratch = Make(static_cast<int64_t>(cpu::AttentionScratchBytes<float>(shape) / 4));
  const DropoutKey key = {.seed = 1, .site = 2, .first_sequence = 3, .p = p};
  std::vector<int32_t> first;
  double pairs = 0;  // of a query and a key that it sees
  for (int64_t t = 0; t < sequence; ++t) {
    first.push_back(static_cast<int32_t>(window == 0 ? 0 : std::max<int64_t>(0, t - window + 1)));
    pairs += static_cast<double>(t - first.back() + 1);
  }
  const FirstKeys first_keys = {window == 0 ? nullptr : first.data()};
  const double flops = 4.0 * n * pairs / static_cast<double>(sequence);  // two products
  const std::string with = p > 0        ? ", dropout"
                           : window > 0 ? fmt::format(", window {}", window)
                                        : "";
  table.Row(("attention" + with).c_str(), kLayers, BestSeconds([&] {
              cpu::AttentionForward<float>(
                  {shape, qkv.get(), out.get(), lse.get(), key, first_keys, scratch.get()});
            }),
            flops, 16.0 * n);
  table.Row(("attention backward" + with).c_str(), kLayers, BestSeconds([&] {
              cpu::AttentionBackward<float>({shape, qkv.get(), out.get(), lse.get(), dout.get(),
                                             dqkv.get(), key, first_keys, scratch.get()});
            }),
            2.5 * flops, 32.0 * n);
}

void Layer(Table& table, int64_t tokens, int64_t sequence, float p) {
  const int64_t c = kChannels, n = tokens * c;
  const Buffer x = Make(4 * n), y = Make(4 * n), dx = Make(4 * n), gamma = Make(c), beta = Make(c);
  const Buffer mean = Make(tokens), rstd = Make(tokens), sums = Make(9 * c), sums2 = Make(c);
  const DropoutKey key = {.seed = 1, .site = 2, .first_sequence = 3, .p = p};
  const kernels::MaskedRange range = {0, n, sequence * c};
  if (p > 0) {
    table.Row("residual, dropout", 2 * kLayers, BestSeconds([&] {
                cpu::Residual<float>({range, x.get(), y.get(), dx.get(), key});
              }),
              0, 12.0 * n);
    table.Row("dropout", 2 * kLayers, BestSeconds([&] {
                cpu::Dropout<float>({range, x.get(), dx.get(), key});
              }),
              0, 8.0 * n);
    return;
  }
  table.Row("layer norm", 2 * kLayers + 1, BestSeconds([&] {
              cpu::LayerNormForward<float>(
                  {tokens, c, x.get(), gamma.get(), beta.get(), y.get(), mean.get(), rstd.get()});
            }),
            0, 8.0 * n);
  table.Row("layer norm backward", 2 * kLayers + 1, BestSeconds([&] {
              cpu::LayerNormBackward<float>({tokens, c, y.get(), x.get(), gamma.get(), mean.get(),
                                             rstd.get(), dx.get(), dx.get(), sums.get(),
                                             sums2.get(), Update::kAdd});
            }),
            0, 16.0 * n);
  table.Row("gelu", kLayers, BestSeconds([&] {
              cpu::GeluForward<float>({4 * n, x.get(), y.get()});
            }),
            0, 32.0 * n);
  table.Row("gelu backward", kLayers, BestSeconds([&] {
              cpu::GeluBackward<float>({4 * n, x.get(), y.get(), dx.get()});
            }),
            0, 48.0 * n);
  const BiasTensor<float> biases[] = {{4 * c, x.get(), sums.get()},
                                      {3 * c, y.get(), sums.get() + 4 * c},
                                      {c, dx.get(), sums.get() + 7 * c},
                                      {c, dx.get() + n, sums.get() + 8 * c}};
  table.Row("bias gradients of a layer", kLayers, BestSeconds([&] {
              cpu::BiasGradient<float>({tokens, biases, Update::kAdd});
            }),
            0, 36.0 * n);
  table.Row("residual", 2 * kLayers, BestSeconds([&] {
              cpu::Residual<float>({range, x.get(), y.get(), dx.get(), key});
            }),
            0, 12.0 * n);
}

// What a LLaMA of this width has instead.
void LlamaLayer(Table& table, int64_t tokens, int64_t sequence) {
  constexpr int64_t c = kChannels, inner = 2048, head_dim = c / kHeads;
  const int64_t n = tokens * c;
  const Buffer x = Make(2 * tokens * inner), y = Make(tokens * inner), gamma = Make(c);
  const Buffer rstd = Make(tokens), sums = Make(c), angles = Make(sequence * head_dim / 2);
  table.Row("rms norm", 2 * kLayers + 1, BestSeconds([&] {
              cpu::LayerNormForward<float>({.rows = tokens,
                                            .channels = c,
                                            .x = x.get(),
                                            .gamma = gamma.get(),
                                            .y = y.get(),
                                            .rstd = rstd.get()});
            }),
            0, 8.0 * n);
  table.Row("rms norm backward", 2 * kLayers + 1, BestSeconds([&] {
              cpu::LayerNormBackward<float>({.rows = tokens,
                                             .channels = c,
                                             .dy = y.get(),
                                             .x = x.get(),
                                             .gamma = gamma.get(),
                                             .rstd = rstd.get(),
                                             .dx = y.get(),
                                             .add = y.get(),
                                             .dgamma = sums.get(),
                                             .update = Update::kAdd});
            }),
            0, 16.0 * n);
  // Of queries and keys, as Qwen3 has them.
  const Buffer heads = Make(tokens * 2 * kHeads), gammas = Make(2 * head_dim), qkv = Make(3 * n);
  table.Row("rms norm of heads", kLayers, BestSeconds([&] {
              cpu::HeadNormForward<float>({tokens, kHeads, kHeads, head_dim, x.get(), gamma.get(),
                                           gamma.get(), qkv.get(), heads.get()});
            }),
            0, 24.0 * n);
  table.Row("rms norm of heads, backward", kLayers, BestSeconds([&] {
              cpu::HeadNormBackward<float>({tokens, kHeads, kHeads, head_dim, x.get(), gamma.get(),
                                            gamma.get(), heads.get(), qkv.get(), gammas.get()});
            }),
            0, 24.0 * n);
  for (const Turn turn : {Turn::kForward, Turn::kBackward})
    table.Row(turn == Turn::kForward ? "rope, queries and keys" : "rope backward", kLayers,
              BestSeconds([&] {
                cpu::Rope<float>({.batch = tokens / sequence,
                                  .tokens = sequence,
                                  .heads = 2 * kHeads,
                                  .head_dim = head_dim,
                                  .row_stride = 3 * c,
                                  .cosine = angles.get(),
                                  .sine = angles.get(),
                                  .x = x.get(),
                                  .turn = turn});
              }),
              0, 16.0 * n);
  table.Row("swiglu", kLayers, BestSeconds([&] {
              cpu::SwiGluForward<float>({tokens, inner, x.get(), y.get()});
            }),
            0, 12.0 * tokens * inner);
  table.Row("swiglu backward", kLayers, BestSeconds([&] {
              cpu::SwiGluBackward<float>({tokens, inner, x.get(), y.get(), x.get()});
            }),
            0, 20.0 * tokens * inner);
}

void Ends(Table& table, int64_t tokens) {
  const Buffer logits = Make(tokens * kVocabulary);
  std::vector<double> losses(tokens);
  const std::vector<int32_t> target(tokens, 7);
  double loss = 0;
  const double bytes = 4.0 * tokens * kVocabulary;
  table.Row("cross entropy", 1, BestSeconds([&] {
              cpu::CrossEntropyForward<float>({.rows = tokens,
                                               .vocabulary = kVocabulary,
                                               .logits = logits.get(),
                                               .target = target.data(),
                                               .losses = losses.data(),
                                               .loss = &loss,
                                               .dlogits = logits.get(),
                                               .scale = 1.0f / static_cast<float>(tokens)});
            }),
            0, 2 * bytes);
  const int64_t n = kVocabulary * kChannels, all = 124439808;
  const Buffer w = Make(n), m = Make(n), v = Make(n), g = Make(n);
  std::vector<double> partial(SumSquaresBlocks(n));
  for (int64_t i = 0; i < n; ++i) v.get()[i] = 1;
  const double share = static_cast<double>(all) / n;  // of the model relative to this tensor
  const AdamWTensor tensor = {
      .n = n, .weights = w.get(), .m = m.get(), .v = v.get(), .gradient = g.get(), .decay = 0.1f};
  table.Row("adamw, all weights", 1,
            share * BestSeconds([&] {
              cpu::AdamW({.tensors = {&tensor, 1}, .learning_rate = 1e-4f});
            }),
            0, 28.0 * all);
  const SumSquaresTensor squares = {n, g.get(), partial.data()};
  table.Row("sum of squares, all", 1, share * BestSeconds([&] {
                                        cpu::SumSquares({{&squares, 1}});
                                      }),
            0, 4.0 * all);
  table.Row("fill, embedding", 1, BestSeconds([&] { cpu::Fill({n, g.get(), 0}); }), 0, 4.0 * n);
  table.Row("add, embedding", 1, BestSeconds([&] {
              cpu::Add({n, g.get(), w.get()});
            }),
            0, 12.0 * n);
  fmt::print("{:28} {:31.1f} GB/s\n", "(memcpy of the same)",
             8.0 * n * 1e-9 / BestSeconds([&] { std::memcpy(w.get(), g.get(), 4 * n); }));
  fmt::print("{:28} {:20.3f} s for 124M\n", "(random normal)",
             share * Seconds([&] {
               cpu::RandomNormal({w.get(), n, 0, 1, 2, 0.02f});
             }));
}

}  // namespace
}  // namespace pp::kernels

int main(int argc, char** argv) {
  using namespace pp::kernels;
  const int64_t tokens = argc > 1 ? std::atol(argv[1]) : 256;
  const int64_t sequence = argc > 2 ? std::atol(argv[2]) : std::min<int64_t>(64, tokens);
  fmt::print("{} tokens in sequences of {}, {}\n\n", tokens, sequence,
             SupportedCpuKernels().back().isa);
  const double peak = PeakFlops();
  fmt::print("peak of fused multiply-adds, one thread: {:.1f} GF/s\n\n", peak * 1e-9);
  SetThreads(2);
  const double products = Matmuls(tokens, peak);
  SetThreads(1);
  Table plain, dropout, llama;
  Attention(plain, tokens, sequence, 0, 0);
  Layer(plain, tokens, sequence, 0);
  Ends(plain, tokens);
  fmt::print("{:28}       {:9.3f} ms\n\n", "all but products", plain.total() * 1e3);
  Attention(dropout, tokens, sequence, 0.1f, 0);
  Layer(dropout, tokens, sequence, 0.1f);
  fmt::print("\n{:28}       {:9.3f} ms\n\n", "a step without dropout",
             (products + plain.total()) * 1e3);
  LlamaLayer(llama, tokens, sequence);
  Attention(llama, tokens, sequence, 0, std::max<int64_t>(1, sequence / 4));
}
