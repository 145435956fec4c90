// The kernels' part: `work` is bytes read and written once, as kernels/README.md counts them, or
// useful operations.
#include "tests/kernels/gpu_speed.h"

#include <fmt/format.h>

#include <vector>

#include "kernels/kernels.h"
#include "kernels/round.h"

namespace pp::kernels {
namespace {

using Halves = Operand<BFloat16>;
using Floats = Operand<float>;

constexpr int64_t kTokens = 1024, kRows = 16 * kTokens;
constexpr Unit kBytes = Unit::kGigabytes;

double Bytes(int64_t elements, double each) { return each * static_cast<double>(elements); }

void TimeCopy(GpuTimer& timer) {
  constexpr int64_t kFloats = int64_t{1} << 28;
  const Floats from(1, kFloats), to(1, kFloats);
  timer.Time("ceiling: a copy of 1 GiB", Bytes(kFloats, 8), kBytes, [&](int) {
    cudaMemcpyAsync(to[0], from[0], kFloats * 4, cudaMemcpyDeviceToDevice, nullptr);
  });
}

// LayerNorm of GPT-2's width, RMSNorm of LLaMA's.
void TimeNorm(GpuTimer& timer, const char* name, int64_t width, bool centred) {
  const int64_t n = kRows * width;
  const int sets = timer.Sets(Bytes(n, 8));
  const Halves x(sets, n), y(sets, n), dy(sets, n), dx(sets, n);
  const Floats gamma(1, width), beta(1, width), dgamma(1, width), dbeta(1, width);
  const Floats mean(1, kRows), rstd(1, kRows, Numbers::kPositive);
  const Floats scratch(1, NormScratchFloats(width));
  timer.Time(fmt::format("{} forward, C {}", name, width), Bytes(n, 4), kBytes, [&](int i) {
    cuda::LayerNormForward<BFloat16>({.rows = kRows,
                                      .channels = width,
                                      .x = x[i],
                                      .gamma = gamma[0],
                                      .beta = centred ? beta[0] : nullptr,
                                      .y = y[i],
                                      .mean = centred ? mean[0] : nullptr,
                                      .rstd = rstd[0]},
                                     nullptr);
  });
  timer.Time(fmt::format("{} backward, C {}", name, width), Bytes(n, 8), kBytes, [&](int i) {
    cuda::LayerNormBackward<BFloat16>({.rows = kRows,
                                       .channels = width,
                                       .dy = dy[i],
                                       .x = x[i],
                                       .gamma = gamma[0],
                                       .mean = centred ? mean[0] : nullptr,
                                       .rstd = rstd[0],
                                       .dx = dx[i],
                                       .add = dx[i],
                                       .dgamma = dgamma[0],
                                       .dbeta = centred ? dbeta[0] : nullptr,
                                       .scratch = scratch[0]},
                                      nullptr);
  });
}

void TimeGelu(GpuTimer& timer) {
  const int64_t n = kRows * 3072;
  const int sets = timer.Sets(Bytes(n, 6));
  const Halves x(sets, n), y(sets, n), dy(sets, n);
  timer.Time("gelu forward, 3072", Bytes(n, 4), kBytes,
             [&](int i) { cuda::GeluForward<BFloat16>({.n = n, .x = x[i], .y = y[i]}, nullptr); });
  timer.Time("gelu backward, 3072", Bytes(n, 6), kBytes, [&](int i) {
    cuda::GeluBackward<BFloat16>({.n = n, .x = x[i], .dy = dy[i], .dx = y[i]}, nullptr);
  });
}

void TimeSwiGlu(GpuTimer& timer) {
  const int64_t columns = 8192, n = kRows * columns;
  const int sets = timer.Sets(Bytes(n, 10));
  const Halves x(sets, 2 * n), dx(sets, 2 * n), y(sets, n);
  timer.Time("swiglu forward, 8192", Bytes(n, 6), kBytes, [&](int i) {
    cuda::SwiGluForward<BFloat16>({.rows = kRows, .columns = columns, .x = x[i], .y = y[i]},
                                  nullptr);
  });
  timer.Time("swiglu backward, 8192", Bytes(n, 10), kBytes, [&](int i) {
    cuda::SwiGluBackward<BFloat16>(
        {.rows = kRows, .columns = columns, .x = x[i], .dy = y[i], .dx = dx[i]}, nullptr);
  });
}

// Of LLaMA 1B: 32 heads of queries, 8 of keys, of 64 numbers each.
void TimeRope(GpuTimer& timer) {
  const int64_t dim = 64, heads = 40, stride = 48 * dim;
  const int sets = timer.Sets(Bytes(kRows * stride, 2));
  const Halves x(sets, kRows * stride);
  const Floats cosine(1, kTokens * dim / 2), sine(1, kTokens * dim / 2);
  timer.Time("rope, 40 heads", Bytes(kRows * heads * dim, 4), kBytes, [&](int i) {
    cuda::Rope<BFloat16>({.batch = kRows / kTokens,
                          .tokens = kTokens,
                          .heads = heads,
                          .head_dim = dim,
                          .row_stride = stride,
                          .cosine = cosine[0],
                          .sine = sine[0],
                          .x = x[i]},
                         nullptr);
  });
}

// Of Qwen3 1.7B: 16 heads of queries, 8 of keys, of 128 numbers each.
void TimeHeadNorm(GpuTimer& timer) {
  const int64_t dim = 128, heads = 16, kv_heads = 8, n = kRows * (heads + 2 * kv_heads) * dim;
  const int64_t normed = kRows * (heads + kv_heads) * dim;
  const int sets = timer.Sets(Bytes(n, 4));
  const Halves x(sets, n), y(sets, n);
  const Floats gamma(1, dim), dgamma(1, 2 * dim), rstd(1, kRows * (heads + kv_heads));
  const Floats scratch(1, NormScratchFloats(dim));
  timer.Time("norm of heads, 24 heads", Bytes(n, 4), kBytes, [&](int i) {
    cuda::HeadNormForward<BFloat16>(
        {kRows, heads, kv_heads, dim, x[i], gamma[0], gamma[0], y[i], rstd[0]}, nullptr);
  });
  timer.Time("norm of heads backward", Bytes(normed, 6), kBytes, [&](int i) {
    cuda::HeadNormBackward<BFloat16>({kRows, heads, kv_heads, dim, x[i], gamma[0], gamma[0],
                                      rstd[0], y[i], dgamma[0], scratch[0]},
                                     nullptr);
  });
}

void TimeResidual(GpuTimer& timer) {
  const int64_t width = 768, n = kRows * width;
  const int sets = timer.Sets(Bytes(n, 6));
  const Halves x(sets, n), y(sets, n), out(sets, n);
  for (const float p : {0.0f, 0.1f}) {
    const DropoutKey key = {.seed = 1, .site = 2, .first_sequence = 3, .p = p};
    const MaskedRange range = {.n = n, .sequence_elements = kTokens * width};
    timer.Time(fmt::format("residual, dropout {}", p), Bytes(n, 6), kBytes, [&](int i) {
      cuda::Residual<BFloat16>(
          {.range = range, .x = x[i], .y = y[i], .out = out[i], .dropout = key}, nullptr);
    });
    timer.Time(fmt::format("dropout {}", p), Bytes(n, 4), kBytes, [&](int i) {
      cuda::Dropout<BFloat16>({.range = range, .x = x[i], .out = out[i], .dropout = key}, nullptr);
    });
  }
}

void TimeBias(GpuTimer& timer) {
  for (const int64_t columns : {768, 2304, 3072}) {
    const int sets = timer.Sets(Bytes(kRows * columns, 2));
    const Halves dy(sets, kRows * columns);
    const Floats dbias(1, columns), scratch(1, BiasScratchFloats(columns));
    timer.Time(fmt::format("bias gradient, {}", columns), Bytes(kRows * columns, 2), kBytes,
               [&](int i) {
                 const BiasTensor<BFloat16> tensor = {columns, dy[i], dbias[0]};
                 cuda::BiasGradient<BFloat16>(
                     {.rows = kRows, .tensors = {&tensor, 1}, .scratch = scratch[0]}, nullptr);
               });
  }
}

void TimeEmbedding(GpuTimer& timer, int64_t width) {
  const int64_t n = kRows * width;
  const int sets = timer.Sets(Bytes(n, 6));
  const Operand<int32_t> token(sets, kRows, Numbers::kTokens);
  const Floats table(1, kVocabulary * width), position(1, kTokens * width);
  const Halves x(sets, n);
  timer.Time(fmt::format("embedding forward, C {}", width), Bytes(n, 6), kBytes, [&](int i) {
    cuda::EmbeddingForward<BFloat16>({.batch = kRows / kTokens,
                                      .tokens = kTokens,
                                      .channels = width,
                                      .vocabulary = kVocabulary,
                                      .token = token[i],
                                      .table = table[0],
                                      .position = position[0],
                                      .out = x[i]},
                                     nullptr);
  });
  timer.Time(fmt::format("embedding backward, C {}", width), Bytes(n, 10), kBytes, [&](int i) {
    cuda::EmbeddingBackward<BFloat16>({.batch = kRows / kTokens,
                                       .tokens = kTokens,
                                       .channels = width,
                                       .vocabulary = kVocabulary,
                                       .token = token[i],
                                       .dout = x[i],
                                       .dtable = table[0],
                                       .dposition = position[0]},
                                      nullptr);
  });
}

void TimeCrossEntropy(GpuTimer& timer) {
  const int64_t rows = kRows / 4, stride = 50304;
  const int sets = timer.Sets(Bytes(rows * stride, 2));
  const Halves logits(sets, rows * stride);
  const Operand<int32_t> target(sets, rows, Numbers::kTokens);
  const Operand<double> losses(1, rows), loss(1, 1);
  for (const bool gradient : {false, true})
    timer.Time(gradient ? "cross-entropy, loss and gradient" : "cross-entropy, loss",
               Bytes(rows * kVocabulary, gradient ? 4 : 2), kBytes, [&](int i) {
                 cuda::CrossEntropyForward<BFloat16>({.rows = rows,
                                                      .vocabulary = kVocabulary,
                                                      .row_stride = stride,
                                                      .logits = logits[i],
                                                      .target = target[i],
                                                      .losses = losses[0],
                                                      .loss = loss[0],
                                                      .dlogits = gradient ? logits[i] : nullptr},
                                                     nullptr);
               });
}

// What a step does once with all parameters: of the size of GPT-2 124M.
void TimeParameters(GpuTimer& timer) {
  const int64_t n = int64_t{124} << 20;
  const Floats w(1, n), m(1, n), v(1, n, Numbers::kPositive), gradient(1, n);
  const Halves rounded(1, n);
  const Operand<double> partial(1, SumSquaresBlocks(n));
  const AdamWTensor tensor = {.n = n,
                              .weights = w[0],
                              .m = m[0],
                              .v = v[0],
                              .gradient = gradient[0],
                              .decay = 0.1f,
                              .rounded = rounded[0]};
  for (const Rounding rounding : {Rounding::kBFloat16, Rounding::kStochasticBFloat16}) {
    const bool nearest = rounding == Rounding::kBFloat16;
    timer.Time(fmt::format("adamw, rounded {}", nearest ? "to nearest" : "stochastically"),
               Bytes(n, 30), kBytes, [&](int) {
                 cuda::AdamW(
                     {.tensors = {&tensor, 1}, .learning_rate = 1e-4f, .rounding = rounding},
                     nullptr);
               });
    timer.Time(fmt::format("round {}", nearest ? "to nearest" : "stochastically"), Bytes(n, 6),
               kBytes, [&](int) {
                 cuda::Round({.n = n, .x = w[0], .y = rounded[0], .rounding = rounding}, nullptr);
               });
  }
  const SumSquaresTensor squares = {.n = n, .x = gradient[0], .partial = partial[0]};
  timer.Time("sum of squares", Bytes(n, 4), kBytes, [&](int) {
    cuda::SumSquares({.tensors = {&squares, 1}}, nullptr);
  });
  timer.Time("add", Bytes(n, 12), kBytes,
             [&](int) { cuda::Add({.n = n, .x = m[0], .out = v[0]}, nullptr); });
  timer.Time("fill", Bytes(n, 4), kBytes,
             [&](int) { cuda::Fill({.n = n, .out = v[0], .value = 1}, nullptr); });
  const float* parts[] = {w[0], m[0], v[0], gradient[0]};
  timer.Time("sum of 4 parts, fp32", Bytes(n, 20), kBytes, [&](int) {
    cuda::SumParts<float>({.n = n, .count = 4, .parts = parts, .out = w[0]}, nullptr);
  });
}

// The same number of tokens whatever their sequences' length. Useful operations: two products in
// the forward, five in the backward, of the half that is not masked, but for what is further back
// than a window, if there is one.
void TimeAttention(GpuTimer& timer, int64_t heads, int64_t kv_heads, int64_t head_dim,
                   int64_t tokens, int64_t window = 0) {
  const AttentionShape shape = {.batch = kRows / tokens,
                                .tokens = tokens,
                                .heads = heads,
                                .head_dim = head_dim,
                                .kv_heads = kv_heads};
  const int64_t width = heads * head_dim, n = kRows * width;
  const int64_t all = kRows * (heads + 2 * kv_heads) * head_dim;
  const int sets = timer.Sets(Bytes(all, 2));
  const Halves qkv(sets, all), dqkv(sets, all), out(sets, n), dout(sets, n);
  const Floats lse(sets, kRows * heads);
  const Operand<float> scratch(1, static_cast<int64_t>(cuda::AttentionScratchBytes(shape)) / 4 + 1);
  std::vector<int32_t> list(tokens);
  for (int64_t t = window; t < tokens; ++t) list[t] = static_cast<int32_t>(t - window + 1);
  const Operand<int32_t> first(1, tokens, Numbers::kTokens);
  cudaMemcpy(first[0], list.data(), tokens * sizeof(int32_t), cudaMemcpyHostToDevice);
  const FirstKeys first_keys = {window > 0 ? first[0] : nullptr};
  const double hidden = window > 0 ? 1 - Bytes(window, 1) / Bytes(tokens, 1) : 0;
  const double product = Bytes(kRows * tokens * width, 1 - hidden * hidden);
  std::string of =
      fmt::format("{} heads of {}, {} of keys, T {}", heads, head_dim, kv_heads, tokens);
  if (window > 0) of += fmt::format(", window {}", window);
  timer.Time("attention forward, " + of, 2 * product, Unit::kTeraflops, [&](int i) {
    cuda::AttentionForward<BFloat16>(
        {.shape = shape, .qkv = qkv[i], .out = out[i], .lse = lse[i], .first_keys = first_keys},
        nullptr);
  });
  timer.Time("attention backward, " + of, 5 * product, Unit::kTeraflops, [&](int i) {
    cuda::AttentionBackward<BFloat16>({.shape = shape,
                                       .qkv = qkv[i],
                                       .out = out[i],
                                       .lse = lse[i],
                                       .dout = dout[i],
                                       .dqkv = dqkv[i],
                                       .first_keys = first_keys,
                                       .scratch = scratch[0]},
                                      nullptr);
  });
}

}  // namespace

int Speed(Timed what) {
  GpuTimer timer;
  TimeCopy(timer);
  const bool right = TimeLargeProduct(timer);
  if (what == Timed::kCeilings) return right ? 0 : 1;
  for (const int64_t tokens : {1024, 2048, 4096, 8192}) {
    TimeAttention(timer, 12, 12, 64, tokens);
    TimeAttention(timer, 32, 8, 64, tokens);
    TimeAttention(timer, 32, 8, 128, tokens);
    TimeAttention(timer, 32, 8, 128, tokens, 512);
  }
  TimeNorm(timer, "layer norm", 768, true);
  TimeNorm(timer, "rms norm", 2048, false);
  TimeGelu(timer);
  TimeSwiGlu(timer);
  TimeHeadNorm(timer);
  TimeRope(timer);
  TimeResidual(timer);
  TimeBias(timer);
  TimeEmbedding(timer, 768);
  TimeEmbedding(timer, 2048);
  TimeCrossEntropy(timer);
  TimeParameters(timer);
  return right ? 0 : 1;
}

}  // namespace pp::kernels
