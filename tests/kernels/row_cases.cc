// Kernels that go over rows, one per token: embedding, norms, rotary embedding, bias gradients.
#include <cmath>

#include "tests/kernels/kernel_cases.h"

namespace pp::kernels {
namespace {

// Also RMSNorm, if not centered.
Comparison Norm(const CpuKernels& kernels, bool centered) {
  Comparison result;
  // On a GPU a block has one row or, in the order of their widths, 33, 2 and 2; a thread has one
  // pack of a row, or two, or sums are in shared memory.
  constexpr int64_t kShapes[][2] = {{19, 1},    {19, 5},   {19, 64},   {16500, 16},
                                    {520, 136}, {19, 768}, {260, 771}, {3, 1284}};
  for (const auto& [rows, channels] : kShapes) {
    for (const Update update : {Update::kSet, Update::kAdd}) {
      if (rows > 1000 && update == Update::kSet) continue;  // they take their time
      const int64_t n = rows * channels;
      const Floats x = Numbers(n, 1), gamma = Numbers(channels, 2), beta = Numbers(channels, 3);
      const Floats dy = Numbers(n, 4), old = Numbers(n, 5);
      Floats y(n), mean(rows), rstd(rows), dx = old, dgamma = old, dbeta = old;
      dgamma.resize(channels), dbeta.resize(channels);
      const float epsilon = 1e-5f;  // with one channel rstd is 316, and dx exactly 0
      kernels.LayerNormForward({rows, channels, x.data(), gamma.data(),
                                centered ? beta.data() : nullptr, y.data(),
                                centered ? mean.data() : nullptr, rstd.data(), epsilon});
      const bool add = update == Update::kAdd;
      LayerNormBackwardArgs<float> args = {.rows = rows,
                                           .channels = channels,
                                           .dy = dy.data(),
                                           .x = x.data(),
                                           .gamma = gamma.data(),
                                           .mean = centered ? mean.data() : nullptr,
                                           .rstd = rstd.data(),
                                           .dx = dx.data(),
                                           .add = add ? dx.data() : nullptr,
                                           .dgamma = dgamma.data(),
                                           .dbeta = centered ? dbeta.data() : nullptr,
                                           .update = update};
      kernels.LayerNormBackward(args);
      if (add) {  // the same bits elsewhere
        Floats elsewhere(n, std::nanf(""));
        args.dx = elsewhere.data(), args.add = old.data(), args.dgamma = args.dbeta = nullptr;
        kernels.LayerNormBackward(args);
        result.AddOne(SameBits(elsewhere, dx) ? 1.0f : 0, 1, 0);
      }
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

}  // namespace

Comparison LayerNorm(const CpuKernels& kernels) { return Norm(kernels, true); }
Comparison RmsNorm(const CpuKernels& kernels) { return Norm(kernels, false); }

// Each head against RMSNorm's formula; the values pass.
Comparison HeadNorm(const CpuKernels& kernels) {
  Comparison result;
  constexpr int64_t kShapes[][4] = {{5, 1, 1, 2},     {7, 3, 1, 6},   {9, 4, 2, 64},
                                    {1300, 2, 1, 20}, {3, 6, 3, 128}, {2, 2, 2, 256}};
  for (const auto& [rows, heads, kv_heads, n] : kShapes) {
    const int64_t normed = heads + kv_heads, all = normed + kv_heads;
    const Floats x = Numbers(rows * all * n, 1), dy = Numbers(rows * all * n, 2);
    const Floats q_gamma = Numbers(n, 3), k_gamma = Numbers(n, 4);
    Floats y(x.size()), rstd(rows * normed), d = dy, dgamma(2 * n, std::nanf(""));
    const float epsilon = 1e-6f;
    kernels.HeadNormForward({rows, heads, kv_heads, n, x.data(), q_gamma.data(), k_gamma.data(),
                             y.data(), rstd.data(), epsilon});
    HeadNormBackwardArgs<float> args = {rows,     heads,          kv_heads,       n,
                                        x.data(), q_gamma.data(), k_gamma.data(), rstd.data(),
                                        d.data(), dgamma.data()};
    kernels.HeadNormBackward(args);
    Doubles want_y(x.begin(), x.end()), want_d(dy.begin(), dy.end()), want_dgamma(2 * n);
    for (int64_t head = 0; head < rows * all; ++head) {
      const int64_t at = head * n, of_row = head % all;
      if (of_row >= normed) continue;
      const Floats& gamma = of_row < heads ? q_gamma : k_gamma;
      double square = 0, mean = 0;
      for (int64_t c = 0; c < n; ++c) square += x[at + c] * double{x[at + c]} / double(n);
      const double s = 1 / std::sqrt(square + double{epsilon});
      for (int64_t c = 0; c < n; ++c)
        mean += dy[at + c] * double{gamma[c]} * x[at + c] * s / double(n);
      for (int64_t c = 0; c < n; ++c) {
        want_y[at + c] = x[at + c] * s * gamma[c];
        want_dgamma[(of_row < heads ? 0 : n) + c] += dy[at + c] * (x[at + c] * s);
        want_d[at + c] = s * (dy[at + c] * double{gamma[c]} - x[at + c] * s * mean);
      }
    }
    result.Add(y, want_y, 40 * kEpsilon);
    result.Add(d, want_d, 80 * kEpsilon);
    result.Add(dgamma, want_dgamma, 10 * kEpsilon * static_cast<double>(rows * heads));
  }
  return result;
}

Comparison LayerNormInParts(const CpuKernels& kernels) {
  Comparison result;
  const int64_t rows = 3;
  for (const int64_t channels : {20, 21}) {
    const int64_t n = rows * channels;
    const Floats x = Numbers(n, 1), dy = Numbers(n, 2), gamma = Numbers(channels, 3);
    const Floats mean = Numbers(rows, 4), rstd = Numbers(rows, 5);
    LayerNormBackwardArgs<float> both = {.rows = rows,
                                         .channels = channels,
                                         .dy = dy.data(),
                                         .x = x.data(),
                                         .gamma = gamma.data(),
                                         .mean = mean.data(),
                                         .rstd = rstd.data()};
    LayerNormBackwardArgs<float> input = both, weight = both;
    Floats dx[2] = {Floats(n), Floats(n)}, gradients[2] = {Floats(2 * channels), gradients[0]};
    both.dx = dx[0].data(), input.dx = dx[1].data();
    both.dgamma = gradients[0].data(), both.dbeta = both.dgamma + channels;
    weight.dgamma = gradients[1].data(), weight.dbeta = weight.dgamma + channels;
    for (const auto& args : {both, input, weight}) kernels.LayerNormBackward(args);
    result.Add(dx[1], Doubles(dx[0].begin(), dx[0].end()), 0);
    result.Add(gradients[1], Doubles(gradients[0].begin(), gradients[0].end()), 0);
  }
  return result;
}

// All of a table of seven tokens and positions, and a part of it without positions; with packed
// documents, too.
Comparison Embedding(const CpuKernels& kernels) {
  Comparison result;
  for (int i = 0; i < 8; ++i) {
    const DropoutKey& key = kDropouts[i % 2];
    const bool whole = i % 4 < 2;
    const int64_t first = whole ? 0 : 2, vocabulary = whole ? 7 : 3;
    const int64_t batch = 2, tokens = 5, channels = 37;
    const Floats wte = Numbers(vocabulary * channels, 1), wpe = Numbers(tokens * channels, 2);
    const std::vector<int32_t> token = {3, 0, 3, 6, 1, 3, 3, 2, 0, 5};
    const std::vector<int32_t> places = {0, 1, 2, 0, 1, 0, 0, 1, 2, 3};
    const int32_t* place = i < 4 ? nullptr : places.data();
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
                              .dropout = key,
                              .place = place});
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
                               .dropout = key,
                               .place = place});
    for (int64_t row = 0; row < batch * tokens; ++row) {
      const int64_t b = row / tokens, t = row % tokens, at = place != nullptr ? place[row] : t;
      for (int64_t c = 0; c < channels; ++c) {
        const double mask = Mask(key, b, t * channels + c);
        const double gradient = mask * dout[row * channels + c];
        const int64_t here = token[row] - first;
        double sum = whole ? wpe[at * channels + c] : 0;
        if (0 <= here && here < vocabulary) {
          sum += wte[here * channels + c];
          want_dwte[here * channels + c] += gradient;
        }
        want[row * channels + c] = mask * sum;
        if (whole) want_dwpe[at * channels + c] += gradient;
      }
    }
    result.Add(out, want, 4 * kEpsilon);
    result.Add(dwte, want_dwte, 8 * kEpsilon);  // up to four rows meet in one
    result.Add(dwpe, want_dwpe, 8 * kEpsilon);
  }
  return result;
}

// And back: the two rotations together change nothing. Of packed documents for every other size.
Comparison Rope(const CpuKernels& kernels) {
  Comparison result;
  const std::vector<int32_t> positions = {0, 0, 1, 0, 1, 2};
  for (const int64_t dim : {2, 34, 64, 66, 128, 256}) {
    const bool packed = dim == 34 || dim == 66 || dim == 256;
    const int64_t gap = dim % 128 == 0 ? 8 : 5;
    const int64_t batch = 2, tokens = 3, heads = 2, stride = heads * dim + gap, half = dim / 2;
    const Floats x = Numbers(batch * tokens * stride, 1), angles = Numbers(tokens * half, 2);
    Floats cosine(angles.size()), sine(angles.size()), turned = x;
    for (size_t i = 0; i < angles.size(); ++i)
      cosine[i] = std::cos(3 * angles[i]), sine[i] = std::sin(3 * angles[i]);
    RopeArgs<float> args = {batch,  tokens,        heads,       dim,
                            stride, cosine.data(), sine.data(), turned.data()};
    if (packed) args.position = positions.data();
    kernels.Rope(args);
    Doubles want(x.begin(), x.end());  // what lies between the rows is unchanged
    for (int64_t row = 0; row < batch * tokens; ++row) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < half; ++i) {
          const int64_t position = packed ? positions[row] : row % tokens;
          const int64_t at = row * stride + h * dim + i, angle = position * half + i;
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

// One by one and all at once, even more than a launch takes: with the same bits.
Comparison BiasGradient(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t rows : {77, 1001})
    for (const Update update : {Update::kSet, Update::kAdd}) {
      std::vector<int64_t> columns = {1, 513, 40, 1100};
      if (rows == 77 && update == Update::kAdd) columns.resize(150, 3);
      std::vector<Floats> dy, one, all;
      std::vector<BiasTensor<float>> tensors;
      for (const int64_t n : columns) {
        const auto seed = static_cast<uint32_t>(dy.size());
        dy.push_back(Numbers(rows * n, 2 * seed + 1));
        one.push_back(Numbers(n, 2 * seed + 2));
        Doubles want(n);
        for (int64_t c = 0; c < n; ++c) {
          if (update == Update::kAdd) want[c] = one.back()[c];
          for (int64_t r = 0; r < rows; ++r) want[c] += dy.back()[r * n + c];
        }
        all.push_back(one.back());
        const BiasTensor<float> tensor = {n, dy.back().data(), one.back().data()};
        kernels.BiasGradient(
            BiasGradientArgs<float>{.rows = rows, .tensors = {&tensor, 1}, .update = update});
        result.Add(one.back(), want, kEpsilon * rows);
      }
      for (size_t i = 0; i < columns.size(); ++i)
        tensors.push_back({columns[i], dy[i].data(), all[i].data()});
      kernels.BiasGradient(
          BiasGradientArgs<float>{.rows = rows, .tensors = tensors, .update = update});
      for (size_t i = 0; i < columns.size(); ++i)
        result.AddOne(SameBits(all[i], one[i]) ? 1.0f : 0, 1, 0);
    }
  return result;
}

}  // namespace pp::kernels
