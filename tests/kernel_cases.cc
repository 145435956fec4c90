#include "tests/kernel_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/threads.h"

namespace pp::kernels {

double WorstError(const Comparison& c) {
  double worst = 0;
  for (size_t i = 0; i < c.expected.size(); ++i) {
    const double error = std::abs(c.actual[i] - c.expected[i]);
    if (!(error <= c.tolerance[i])) {
      worst = std::max(worst, std::isnan(error) ? HUGE_VAL : error / c.tolerance[i]);
    }
  }
  return worst;
}

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double Mask(const DropoutKey& key, int64_t b, int64_t i) {
  if (key.p == 0) return 1;
  const uint32_t counter[4] = {static_cast<uint32_t>(i / 4), static_cast<uint32_t>(i / 4 >> 32),
                               key.first_sequence + static_cast<uint32_t>(b), key.site};
  uint32_t words[4];
  Philox(key.seed, counter, words);
  return words[i % 4] >= key.p * 4294967296.0 ? 1 / (1.0 - key.p) : 0;
}

namespace {

Comparison Matmul(const CpuKernels& kernels) {
  struct Size {
    int64_t m, n, k;
  };
  // Edges of tiles, panels (48 columns, and two of 32 for 64), blocks (256 x 768) and chunks of k
  // (384, and 192 up to 128 rows).
  constexpr Size kSizes[] = {{1, 1, 1},    {3, 1, 5},    {8, 48, 16},   {7, 257, 33},  {259, 50, 9},
                             {5, 800, 18}, {9, 65, 801}, {24, 64, 390}, {130, 20, 400}};
  Comparison result;
  for (const Size& s : kSizes) {
    for (const Operands operands : {Operands::kNN, Operands::kNT, Operands::kTN}) {
      for (const int variant : {0, 1, 2, 3, 4}) {  // plain, bias, += and bias, residual, +=
        const Floats a = Numbers(s.m * s.k, 1), b = Numbers(s.k * s.n, 2), bias = Numbers(s.n, 3);
        const Floats old = Numbers(s.m * s.n, 4), residual = Numbers(s.m * s.n, 5);
        MatmulShape shape = {.m = s.m, .n = s.n, .k = s.k, .operands = operands};
        if (variant == 1 || variant == 2) shape.bias = WithBias::kYes;
        if (variant == 2 || variant == 4) shape.update = Update::kAdd;
        if (variant == 3) shape.residual = WithResidual::kYes;
        const bool a_turned = operands == Operands::kTN, b_turned = operands == Operands::kNT;
        shape.lda = a_turned ? s.m : s.k, shape.ldb = b_turned ? s.k : s.n, shape.ldc = s.n;
        Floats c = old;
        Scratch scratch(cpu::Matmul::ScratchBytes(MatmulNumbers::kFp32));
        kernels.MatmulRun({.shape = shape,
                           .args = {.a = a.data(),
                                    .b = b.data(),
                                    .c = c.data(),
                                    .bias = bias.data(),
                                    .residual = residual.data(),
                                    .scratch = scratch.get(),
                                    .helpers = scratch.helpers()},
                           .threads = Threads()});
        Doubles want(s.m * s.n);
        for (int64_t i = 0; i < s.m; ++i) {
          for (int64_t j = 0; j < s.n; ++j) {
            double sum = shape.update == Update::kAdd ? old[i * s.n + j] : 0;
            if (variant == 1 || variant == 2) sum += bias[j];
            if (variant == 3) sum += residual[i * s.n + j];
            for (int64_t k = 0; k < s.k; ++k) {
              sum += static_cast<double>(a_turned ? a[k * s.m + i] : a[i * s.k + k]) *
                     (b_turned ? b[j * s.k + k] : b[k * s.n + j]);
            }
            want[i * s.n + j] = sum;
          }
        }
        result.Add(c, want, kEpsilon * (s.k + 4));
      }
    }
  }
  return result;
}

// Leading dimensions larger than the rows, and columns that are not C's left alone.
Comparison MatmulInPlace(const CpuKernels& kernels) {
  const int64_t m = 10, n = 50, k = 20, lda = 23, ldb = 57, ldc = 61;
  const Floats a = Numbers(m * lda, 1), b = Numbers(k * ldb, 2), old = Numbers(m * ldc, 3);
  Floats c = old;
  Scratch scratch(cpu::Matmul::ScratchBytes(MatmulNumbers::kFp32));
  kernels.MatmulRun({.shape = {.m = m,
                               .n = n,
                               .k = k,
                               .residual = WithResidual::kYes,
                               .lda = lda,
                               .ldb = ldb,
                               .ldc = ldc},
                     .args = {.a = a.data(),
                              .b = b.data(),
                              .c = c.data(),
                              .residual = c.data(),
                              .scratch = scratch.get(),
                              .helpers = scratch.helpers()},
                     .threads = Threads()});
  Doubles want(old.begin(), old.end());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t x = 0; x < k; ++x) {
        want[i * ldc + j] += static_cast<double>(a[i * lda + x]) * b[x * ldb + j];
      }
    }
  }
  Comparison result;
  result.Add(c, want, kEpsilon * (k + 4));
  return result;
}

// All of a table of seven tokens and positions, and a part of it without positions.
Comparison Embedding(const CpuKernels& kernels) {
  Comparison result;
  for (int i = 0; i < 4; ++i) {
    const DropoutKey& key = kDropouts[i % 2];
    const bool whole = i < 2;
    const int64_t first = whole ? 0 : 2, vocabulary = whole ? 7 : 3;
    const int64_t batch = 2, tokens = 5, channels = 37;
    const Floats wte = Numbers(vocabulary * channels, 1), wpe = Numbers(tokens * channels, 2);
    const std::vector<int32_t> token = {3, 0, 3, 6, 1, 3, 3, 2, 0, 5};
    Floats out(batch * tokens * channels);
    kernels.EmbeddingForward({.batch = batch,
                              .tokens = tokens,
                              .channels = channels,
                              .first = first,
                              .vocabulary = vocabulary,
                              .token = token.data(),
                              .table = wte.data(),
                              .position = whole ? wpe.data() : nullptr,
                              .out = out.data(),
                              .dropout = key});
    const Floats dout = Numbers(out.size(), 3);
    Floats dwte = Numbers(wte.size(), 4), dwpe = Numbers(wpe.size(), 5);
    Doubles want(out.size()), want_dwte(dwte.begin(), dwte.end()),
        want_dwpe(dwpe.begin(), dwpe.end());
    kernels.EmbeddingBackward({.batch = batch,
                               .tokens = tokens,
                               .channels = channels,
                               .first = first,
                               .vocabulary = vocabulary,
                               .token = token.data(),
                               .dout = dout.data(),
                               .dtable = dwte.data(),
                               .dposition = whole ? dwpe.data() : nullptr,
                               .dropout = key});
    for (int64_t row = 0; row < batch * tokens; ++row) {
      const int64_t b = row / tokens, t = row % tokens;
      for (int64_t c = 0; c < channels; ++c) {
        const double mask = Mask(key, b, t * channels + c);
        const double gradient = mask * dout[row * channels + c];
        const int64_t here = token[row] - first;
        double sum = whole ? wpe[t * channels + c] : 0;
        if (0 <= here && here < vocabulary) {
          sum += wte[here * channels + c];
          want_dwte[here * channels + c] += gradient;
        }
        want[row * channels + c] = mask * sum;
        if (whole) want_dwpe[t * channels + c] += gradient;
      }
    }
    result.Add(out, want, 4 * kEpsilon);
    result.Add(dwte, want_dwte, 8 * kEpsilon);  // up to four rows meet in one
    result.Add(dwpe, want_dwpe, 8 * kEpsilon);
  }
  return result;
}

// And RMSNorm, where it is not centered.
Comparison Norm(const CpuKernels& kernels, bool centered) {
  Comparison result;
  for (const int64_t channels : {1, 5, 64, 768, 771}) {
    for (const Update update : {Update::kSet, Update::kAdd}) {
      const int64_t rows = 19, n = rows * channels;
      const Floats x = Numbers(n, 1), gamma = Numbers(channels, 2), beta = Numbers(channels, 3);
      const Floats dy = Numbers(n, 4), old = Numbers(n, 5);
      Floats y(n), mean(rows), rstd(rows), dx = old, dgamma = old, dbeta = old;
      dgamma.resize(channels), dbeta.resize(channels);
      const float epsilon = 1e-5f;  // with one channel rstd is 316, and dx exactly 0
      kernels.LayerNormForward({rows, channels, x.data(), gamma.data(),
                                centered ? beta.data() : nullptr, y.data(),
                                centered ? mean.data() : nullptr, rstd.data(), epsilon});
      kernels.LayerNormBackward({.rows = rows,
                                 .channels = channels,
                                 .dy = dy.data(),
                                 .x = x.data(),
                                 .gamma = gamma.data(),
                                 .mean = centered ? mean.data() : nullptr,
                                 .rstd = rstd.data(),
                                 .dx = dx.data(),
                                 .dx_update = update,
                                 .dgamma = dgamma.data(),
                                 .dbeta = centered ? dbeta.data() : nullptr,
                                 .update = update});
      const bool add = update == Update::kAdd;
      Doubles want_y(n), want_dx(n), want_dgamma(channels), want_dbeta(channels);
      for (int64_t c = 0; add && c < channels; ++c) want_dgamma[c] = want_dbeta[c] = old[c];
      for (int64_t r = 0; r < rows; ++r) {
        double m = 0, v = 0, g_mean = 0, gn_mean = 0;
        for (int64_t c = 0; centered && c < channels; ++c)
          m += x[r * channels + c] / double(channels);
        for (int64_t c = 0; c < channels; ++c) {
          v += std::pow(x[r * channels + c] - m, 2) / double(channels);
        }
        const double s = 1 / std::sqrt(v + double(epsilon));
        const auto normal = [&](int64_t c) { return (x[r * channels + c] - m) * s; };
        for (int64_t c = 0; c < channels; ++c) {
          const double d = dy[r * channels + c], g = d * gamma[c];
          want_y[r * channels + c] = normal(c) * gamma[c] + (centered ? beta[c] : 0);
          want_dgamma[c] += d * normal(c);
          want_dbeta[c] += d;
          if (centered) g_mean += g / double(channels);
          gn_mean += g * normal(c) / double(channels);
        }
        for (int64_t c = 0; c < channels; ++c) {
          const double d =
              s * (dy[r * channels + c] * double(gamma[c]) - g_mean - normal(c) * gn_mean);
          want_dx[r * channels + c] = d + (add ? old[r * channels + c] : 0);
        }
      }
      // Errors of the means are multiplied by rstd, here at most 10.
      result.Add(y, want_y, 40 * kEpsilon);
      result.Add(dx, want_dx, 80 * kEpsilon);
      result.Add(dgamma, want_dgamma, 10 * kEpsilon * rows);
      if (centered) result.Add(dbeta, want_dbeta, kEpsilon * rows);
    }
  }
  return result;
}

Comparison LayerNorm(const CpuKernels& kernels) { return Norm(kernels, true); }
Comparison RmsNorm(const CpuKernels& kernels) { return Norm(kernels, false); }

Comparison Gelu(const CpuKernels& kernels) {
  Comparison result;
  for (const float range : {1.0f, 10.0f}) {
    Floats x = Numbers(1003, 1);
    for (float& v : x) v *= range;
    const int64_t n = static_cast<int64_t>(x.size());
    const Floats dy = Numbers(n, 2);
    Floats y(n), dx(n);
    kernels.GeluForward({n, x.data(), y.data()});
    kernels.GeluBackward({n, x.data(), dy.data(), dx.data()});
    for (int64_t i = 0; i < n; ++i) {
      const double root = std::sqrt(2 / M_PI), v = x[i], u = root * (v + 0.044715 * v * v * v);
      const double t = std::tanh(u), du = root * (1 + 3 * 0.044715 * v * v);
      const double want = 0.5 * v * (1 + t);
      const double slope = 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * du;
      // Relative, but for what u itself loses to rounding: exp(2u) errs by 2u eps.
      result.Add({y[i]}, {want}, 4 * kEpsilon * std::abs(want) * (1 + std::abs(u)) + 1e-15);
      result.Add({dx[i]}, {dy[i] * slope}, 8 * kEpsilon * (1 + std::abs(v)));
    }
  }
  return result;
}

// Where the square of x is infinite, and where its exponential is.
Comparison GeluFar(const CpuKernels& kernels) {
  const Floats x = {1e20f, -1e20f, 3e38f, -3e38f, 20, -20, 16, -16}, dy(x.size(), 2);
  const int64_t n = static_cast<int64_t>(x.size());
  Floats y(n), dx(n);
  kernels.GeluForward({n, x.data(), y.data()});
  kernels.GeluBackward({n, x.data(), dy.data(), dx.data()});
  Comparison result;
  for (int64_t i = 0; i < n; ++i) {
    result.Add({y[i]}, {x[i] > 0 ? x[i] : 0}, 1e-30);
    result.Add({dx[i]}, {x[i] > 0 ? 2 : 0}, 1e-30);
  }
  return result;
}

Comparison SwiGlu(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t columns : {1, 16, 37, 600}) {
    const int64_t rows = 5, n = rows * columns;
    Floats x = Numbers(2 * n, 1), y(n), dx(2 * n);
    for (float& number : x) number *= 20;  // to where the sigmoid is flat
    const Floats dy = Numbers(n, 2);
    kernels.SwiGluForward({rows, columns, x.data(), y.data()});
    kernels.SwiGluBackward({rows, columns, x.data(), dy.data(), dx.data()});
    Doubles want(n), want_d(2 * n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t gate = i / columns * 2 * columns + i % columns, up = gate + columns;
      const double g = x[gate], u = x[up], s = 1 / (1 + std::exp(-g));
      want[i] = g * s * u;
      want_d[gate] = dy[i] * u * (s + g * s * (1 - s));
      want_d[up] = dy[i] * g * s;
    }
    result.Add(y, want, 400 * 4 * kEpsilon);  // numbers of up to 400
    result.Add(dx, want_d, 20 * 8 * kEpsilon);
  }
  return result;
}

// And back: the two turns together leave everything as it was.
Comparison Rope(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t dim : {2, 34, 64, 128}) {
    const int64_t gap = dim == 128 ? 8 : 5;
    const int64_t batch = 2, tokens = 3, heads = 2, stride = heads * dim + gap, half = dim / 2;
    const Floats x = Numbers(batch * tokens * stride, 1), angles = Numbers(tokens * half, 2);
    Floats cosine(angles.size()), sine(angles.size()), turned = x;
    for (size_t i = 0; i < angles.size(); ++i)
      cosine[i] = std::cos(3 * angles[i]), sine[i] = std::sin(3 * angles[i]);
    RopeArgs<float> args = {batch,  tokens,        heads,       dim,
                            stride, cosine.data(), sine.data(), turned.data()};
    kernels.Rope(args);
    Doubles want(x.begin(), x.end());  // what lies between the rows stays
    for (int64_t row = 0; row < batch * tokens; ++row) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < half; ++i) {
          const int64_t at = row * stride + h * dim + i, angle = row % tokens * half + i;
          const double c = cosine[angle], s = sine[angle];
          want[at] = x[at] * c - x[at + half] * s;
          want[at + half] = x[at + half] * c + x[at] * s;
        }
      }
    }
    result.Add(turned, want, 4 * kEpsilon);
    args.turn = Turn::kBackward;
    kernels.Rope(args);
    result.Add(turned, Doubles(x.begin(), x.end()), 8 * kEpsilon);
  }
  return result;
}

Comparison BiasGradient(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t columns : {1, 513, 1100, 40}) {
    for (const Update update : {Update::kSet, Update::kAdd}) {
      const int64_t rows = columns == 40 ? 1001 : 77;
      const Floats dy = Numbers(rows * columns, 1), old = Numbers(columns, 2);
      Floats dbias = old;
      kernels.BiasGradient({rows, columns, dy.data(), dbias.data(), update});
      Doubles want(columns);
      for (int64_t c = 0; c < columns; ++c) {
        if (update == Update::kAdd) want[c] = old[c];
        for (int64_t r = 0; r < rows; ++r) want[c] += dy[r * columns + c];
      }
      result.Add(dbias, want, kEpsilon * rows);
    }
  }
  return result;
}

Comparison DropoutAndResidual(const CpuKernels& kernels) {
  Comparison result;
  for (const DropoutKey& key : kDropouts) {
    for (const int64_t elements : {1, 30, 31, 64, 20001}) {
      const int64_t batch = 3, n = batch * elements;
      const Floats x = Numbers(n, 1), y = Numbers(n, 2);
      Floats dropped(n), out(n);
      // In three pieces, which begin and end anywhere.
      const int64_t cuts[] = {0, n / 3, 2 * n / 3 + 1, n};
      for (int piece = 0; piece < 3; ++piece) {
        const int64_t first = cuts[piece];
        const MaskedRange range = {first, cuts[piece + 1] - first, elements};
        kernels.Dropout({range, y.data() + first, dropped.data() + first, key});
        kernels.Residual({range, x.data() + first, y.data() + first, out.data() + first, key});
      }
      Doubles want_dropped(n), want_out(n);
      for (int64_t i = 0; i < n; ++i) {
        want_dropped[i] = y[i] * Mask(key, i / elements, i % elements);
        want_out[i] = x[i] + want_dropped[i];
      }
      result.Add(dropped, want_dropped, 2 * kEpsilon);
      result.Add(out, want_out, 3 * kEpsilon);
    }
  }
  return result;
}

Comparison AdamW(const CpuKernels& kernels) {
  const int64_t n = 70001;
  const Floats gradient = Numbers(n, 1);
  Floats w = Numbers(n, 2), m = Numbers(n, 3), v = Numbers(n, 4);
  for (float& x : v) x = std::abs(x);
  const Floats w0 = w, m0 = m, v0 = v;
  AdamWArgs args = {.n = n,
                    .weights = w.data(),
                    .m = m.data(),
                    .v = v.data(),
                    .gradient = gradient.data(),
                    .gradient_scale = 0.5f,
                    .learning_rate = 1e-2f,
                    .decay = 0.1f,
                    .correction1 = 0.271f,
                    .correction2 = 0.002997f};
  kernels.AdamW(args);
  Doubles want_w(n), want_m(n), want_v(n);
  for (int64_t i = 0; i < n; ++i) {
    const double g = 0.5 * gradient[i];
    want_m[i] = args.beta1 * m0[i] + (1.0 - args.beta1) * g;
    want_v[i] = args.beta2 * v0[i] + (1.0 - args.beta2) * g * g;
    const double step =
        want_m[i] / args.correction1 / (std::sqrt(want_v[i] / args.correction2) + args.epsilon);
    want_w[i] = w0[i] - args.learning_rate * (step + args.decay * w0[i]);
  }
  Comparison result;
  result.Add(w, want_w, 4 * kEpsilon);
  result.Add(m, want_m, 2 * kEpsilon);
  result.Add(v, want_v, 2 * kEpsilon);

  // The scale that Clip has written is as good as one in the arguments, and a gradient that is no
  // number changes nothing.
  const Floats w1 = w, m1 = m, v1 = v;
  Clipped clipped = {.scale = 0.5f, .finite = 0};
  args.clipped = &clipped, args.gradient_scale = 2;
  kernels.AdamW(args);
  const bool unchanged = SameBits(w, w1) && SameBits(m, m1) && SameBits(v, v1);
  clipped.finite = 1;
  w = w0, m = m0, v = v0;
  kernels.AdamW(args);
  const bool same = SameBits(w, w1) && SameBits(m, m1) && SameBits(v, v1);
  result.Add({unchanged ? 1.0f : 0, same ? 1.0f : 0}, {1, 1}, 0);
  return result;
}

Comparison Elementwise(const CpuKernels& kernels) {
  const int64_t n = 66000;
  const Floats x = Numbers(n, 1), y = Numbers(n, 2);
  Floats filled(n), sum = y, scaled(n);
  kernels.Fill({n, filled.data(), 1.5f});
  kernels.Add({n, x.data(), sum.data()});
  kernels.Scale({n, x.data(), scaled.data(), 3});
  Doubles want_sum(n), want_scaled(n);
  for (int64_t i = 0; i < n; ++i) want_sum[i] = double(x[i]) + y[i], want_scaled[i] = 3.0 * x[i];
  Comparison result;
  result.Add(filled, Doubles(n, 1.5), 0);
  result.Add(sum, want_sum, kEpsilon);
  result.Add(scaled, want_scaled, 2 * kEpsilon);
  return result;
}

}  // namespace

Floats Numbers(int64_t n, uint32_t seed) {
  Floats out(n);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (float& x : out) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
  }
  return out;
}

void Philox(uint64_t key, const uint32_t (&counter)[4], uint32_t (&c)[4]) {
  uint32_t k[2] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
  std::memcpy(c, counter, sizeof(c));
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
        static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    std::memcpy(c, next, sizeof(next));
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
}

Comparison RandomNormal(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t first : {0, 3, 1022}) {
    const int64_t n = 9001;
    const float std = 0.02f;
    Floats out(n);
    kernels.RandomNormal({out.data(), n, first, 42, 7, std});
    Doubles want(n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = first + i;
      const uint32_t counter[4] = {static_cast<uint32_t>(at / 4), 0, 7, 0xffffffff};
      uint32_t words[4];
      Philox(42, counter, words);
      const double u = (words[at % 4 / 2 * 2] + 0.5) * 0x1p-32;
      const double angle = 2 * M_PI * (words[at % 4 / 2 * 2 + 1] * 0x1p-32);
      const double normal =
          std::sqrt(-2 * std::log(u)) * (at % 2 ? std::sin(angle) : std::cos(angle));
      want[i] = std * normal;
    }
    result.Add(out, want, 8 * kEpsilon * std);
  }
  return result;
}

Comparison SumSquares(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t n : {int64_t{1}, int64_t{100}, kSumSquaresBlock, 2 * kSumSquaresBlock + 33}) {
    const Floats x = Numbers(n, 1);
    Doubles partial(SumSquaresBlocks(n)), want(partial.size());
    kernels.SumSquares({n, x.data(), partial.data()});
    for (int64_t i = 0; i < n; ++i) want[i / kSumSquaresBlock] += double(x[i]) * x[i];
    // Sums of doubles, kept as doubles: the error relative to the sum is below that of a float.
    for (size_t i = 0; i < want.size(); ++i) {
      result.Add({static_cast<float>(partial[i] / want[i] - 1)}, {0}, 1e-12);
    }
  }
  return result;
}

namespace {

constexpr Case kCases[] = {
    {"matmul", Matmul},
    {"matmul with leading dimensions", MatmulInPlace},
    {"embedding", Embedding},
    {"layer norm", LayerNorm},
    {"RMS norm", RmsNorm},
    {"rotary embedding", Rope},
    {"attention", Attention},
    {"gelu", Gelu},
    {"gelu, far from 0", GeluFar},
    {"SwiGLU", SwiGlu},
    {"bias gradient", BiasGradient},
    {"dropout and residual", DropoutAndResidual},
    {"random normal", RandomNormal},
    {"cross entropy", CrossEntropy},
    {"cross entropy, ignored rows", CrossEntropyIgnored},
    {"cross entropy, in parts", CrossEntropyInParts},
    {"adamw", AdamW},
    {"sum of squares", SumSquares},
    {"clip", Clip},
    {"fill, add, scale", Elementwise},
    {"sum of parts", SumParts},
    {"draw", Draw},
    {"embedding, many tokens", EmbeddingLarge},
    {"cross entropy, large vocabulary", CrossEntropyLarge},
    {"cross entropy, infinite and no numbers", CrossEntropyInfinite},
    {"bfloat16: numbers", HalfNumbers},
    {"bfloat16: matmul", HalfMatmul},
    {"bfloat16: attention", HalfAttention},
    {"bfloat16: norms", HalfNorm},
    {"bfloat16: elementwise", HalfElements},
    {"bfloat16: embedding, bias, rotary embedding, cross entropy", HalfEnds},
};

}  // namespace

std::span<const Case> KernelCases() { return kCases; }

}  // namespace pp::kernels
