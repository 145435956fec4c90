// Kernels of BFloat16 beside the same kernels of floats, which have cases of their own: from the
// same numbers they compute the same, and round it once. Products on AMX sum in another order.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/kernel_cases.h"

namespace pp::kernels {
namespace {

using Halves = std::vector<BFloat16>;

// To the nearest, by comparing the two that are next to it.
BFloat16 Nearest(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const auto low = static_cast<uint16_t>(bits >> 16);
  if (std::isnan(x)) return {static_cast<uint16_t>(low | 0x40)};
  const uint32_t rest = bits & 0xffff;
  const bool up = rest > 0x8000 || (rest == 0x8000 && low % 2 == 1);
  return {static_cast<uint16_t>(low + up)};
}

Halves Narrow(const Floats& x) {
  Halves out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = Nearest(x[i]);
  return out;
}

Floats Widen(const Halves& x) {
  Floats out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t bits = uint32_t{x[i].bits} << 16;
    std::memcpy(&out[i], &bits, sizeof(bits));
  }
  return out;
}

Floats Rounded(const Floats& x) { return Widen(Narrow(x)); }

// Numbers that are both.
struct Both {
  Floats floats;
  Halves halves;

  explicit Both(int64_t n) : floats(n), halves(n) {}
  Both(int64_t n, uint32_t seed) : Both(Numbers(n, seed)) {}
  explicit Both(const Floats& x) : floats(Rounded(x)), halves(Narrow(x)) {}

  template <typename N>
  N* data() {
    if constexpr (std::is_same_v<N, float>) {
      return floats.data();
    } else {
      return halves.data();
    }
  }
};

void Add(Comparison& result, const Both& both) {
  const Floats want = Rounded(both.floats);
  result.Add(Widen(both.halves), Doubles(want.begin(), want.end()), 0);
}

// Of what is fp32 in both: sums of a hundred numbers of order 1, at most.
void AddSame(Comparison& result, const CpuKernels& kernels, const Floats& got, const Floats& want) {
  const bool same = kernels.order == CpuKernels::Order::kSame;
  result.Add(got, Doubles(want.begin(), want.end()), same ? 0 : 100 * kEpsilon);
}

// f(N()) for both types.
template <typename F>
void ForBoth(const F& f) {
  f(float());
  f(BFloat16());
}

template <typename N>
int64_t Which() {
  return std::is_same_v<N, float> ? 0 : 1;
}

}  // namespace

Comparison HalfNumbers(const CpuKernels& kernels) {
  Comparison result;
  // Ends, halves of a unit, and what is above the largest one.
  const uint32_t bits[] = {0x00000000, 0x80000000, 0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff,
                           0xbf808000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7f7f7fff, 0x00008000,
                           0x00018000, 0x7f800001, 0xffc00001, 0x7fffffff, 0x477fff80, 0x12345678};
  Floats x(std::size(bits));
  std::memcpy(x.data(), bits, sizeof(bits));
  Halves y(x.size());
  // A table of one row, looked up, is rounded as it is.
  const int32_t token = 0;
  const auto n = static_cast<int64_t>(x.size());
  kernels.EmbeddingForward({.batch = 1,
                            .tokens = 1,
                            .channels = n,
                            .vocabulary = 1,
                            .token = &token,
                            .table = x.data(),
                            .out = y.data()});
  const Halves want = Narrow(x);
  // One NaN is as good as another.
  const auto bits_of = [](BFloat16 half) {
    return (half.bits & 0x7fff) > 0x7f80 ? 0x7fff : half.bits;
  };
  for (size_t i = 0; i < x.size(); ++i)
    result.Add({static_cast<float>(bits_of(y[i]))}, {double(bits_of(want[i]))}, 0);
  return result;
}

Comparison HalfMatmul(const CpuKernels& kernels) {
  struct Size {
    int64_t m, n, k;
  };
  // Edges of tiles, panels, blocks and chunks of k, also of those of one part (1152).
  constexpr Size kSizes[] = {{1, 1, 1},      {3, 1, 5},      {8, 48, 16},   {7, 257, 33},
                             {259, 50, 9},   {5, 800, 18},   {9, 65, 801},  {24, 64, 390},
                             {130, 20, 400}, {40, 33, 1200}, {33, 1600, 35}};
  const bool amx = std::strcmp(kernels.isa, "amx") == 0;
  const CpuKernels& plain = amx ? *(SupportedCpuKernels().end() - 2) : kernels;
  Comparison result;
  for (const Size& s : kSizes)
    for (const Operands operands : {Operands::kNN, Operands::kNT, Operands::kTN})
      for (const int variant : {0, 1, 2, 3}) {  // plain, bias, residual, +=, to floats
        const int64_t ldc = s.n + 3;
        Both a(s.m * s.k, 1), b(s.k * s.n, 2), residual(s.m * ldc, 3), c(Numbers(s.m * ldc, 4));
        const Floats bias = Numbers(s.n, 5), weights = Numbers(s.k * s.n, 2);
        Floats sums = c.floats;
        MatmulShape shape = {.m = s.m, .n = s.n, .k = s.k, .operands = operands};
        if (variant == 1) shape.bias = WithBias::kYes;
        if (variant == 2) shape.residual = WithResidual::kYes;
        if (variant == 3) shape.update = Update::kAdd;
        shape.lda = operands == Operands::kTN ? s.m : s.k;
        shape.ldb = operands == Operands::kNT ? s.k : s.n;
        shape.ldc = ldc;
        Scratch scratch(cpu::Matmul::ScratchBytes(MatmulNumbers::kBf16));
        MatmulArgs args = {.a = a.floats.data(),
                           .b = b.floats.data(),
                           .c = c.floats.data(),
                           .bias = bias.data(),
                           .residual = residual.floats.data(),
                           .scratch = scratch.get(),
                           .helpers = scratch.helpers()};
        plain.MatmulRun({.shape = shape, .args = args, .threads = 1});
        args.a = a.halves.data(), args.residual = residual.halves.data();
        const bool to_sums = variant == 3;
        shape.numbers = to_sums ? MatmulNumbers::kBf16Sum : MatmulNumbers::kBf16;
        args.b = to_sums ? static_cast<const void*>(b.halves.data()) : weights.data();
        args.c = to_sums ? static_cast<void*>(sums.data()) : c.halves.data();
        kernels.MatmulRun({.shape = shape, .args = args, .threads = static_cast<int>(Threads())});
        const Floats got = to_sums ? sums : Widen(c.halves);
        const Floats want = to_sums ? c.floats : Rounded(c.floats);
        const double error = kEpsilon * (static_cast<double>(s.k) + 4);
        for (size_t i = 0; i < want.size(); ++i) {
          // Where the order of a sum differs, it may be rounded to the next number.
          const double unit = to_sums ? 0 : std::abs(want[i]) / 128 + error;
          result.Add({got[i]}, {want[i]}, amx ? error + unit : 0);
        }
      }
  return result;
}

// Products with GELU, and with the way back through it. Whether the formula gets the product P or P
// rounded, by up to 2^-9 of itself, is left open: a slope of at most 1.13 makes no more of that.
Comparison HalfMatmulGelu(const CpuKernels& kernels) {
  struct Size {
    int64_t m, n, k;
  };
  constexpr Size kSizes[] = {{1, 8, 8}, {24, 64, 40}, {7, 264, 808}, {130, 1024, 16}};
  Comparison result;
  for (const Size& s : kSizes)
    for (const Operands operands : {Operands::kNN, Operands::kNT})
      for (const Epilogue epilogue : {Epilogue::kGelu, Epilogue::kGeluBackward}) {
        const bool forward = epilogue == Epilogue::kGelu, turned = operands == Operands::kNT;
        const Both a(s.m * s.k, 1), b(s.k * s.n, 2), bias(s.n, 3);
        Both aux(s.m * s.n, 4), c(s.m * s.n, 5);
        Scratch scratch(cpu::Matmul::ScratchBytes(MatmulNumbers::kBf16));
        kernels.MatmulRun({.shape = {.m = s.m,
                                     .n = s.n,
                                     .k = s.k,
                                     .operands = operands,
                                     .bias = forward ? WithBias::kYes : WithBias::kNo,
                                     .lda = s.k,
                                     .ldb = turned ? s.k : s.n,
                                     .ldc = s.n,
                                     .numbers = MatmulNumbers::kBf16,
                                     .epilogue = epilogue},
                           .args = {.a = a.halves.data(),
                                    .b = b.floats.data(),
                                    .c = c.halves.data(),
                                    .bias = bias.floats.data(),
                                    .aux = aux.halves.data(),
                                    .scratch = scratch.get(),
                                    .helpers = scratch.helpers()},
                           .threads = static_cast<int>(Threads())});
        const Floats got = Widen(c.halves), saved = Widen(aux.halves);
        for (int64_t i = 0; i < s.m * s.n; ++i) {
          const int64_t row = i / s.n, column = i % s.n;
          double p = forward ? bias.floats[column] : 0;
          for (int64_t k = 0; k < s.k; ++k)
            p += double{a.floats[row * s.k + k]} *
                 b.floats[turned ? column * s.k + k : k * s.n + column];
          const double error = kEpsilon * (static_cast<double>(s.k) + 4);
          const double x = forward ? p : aux.floats[i], root = std::sqrt(2 / M_PI);
          const double t = std::tanh(root * (x + 0.044715 * x * x * x));
          const double slope =
              0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
          const double want = forward ? 0.5 * x * (1 + t) : p * slope;
          result.Add({got[i]}, {want}, (std::abs(want) + 1.13 * std::abs(p)) / 256 + 2 * error);
          result.Add({saved[i]}, {x}, forward ? std::abs(x) / 256 + error : 0);
        }
      }
  return result;
}

// Of sums over keys or queries of P*x or dS*x. Where P and dS are rounded, each by up to 2^-9 of
// itself, and the results of both types may be rounded to numbers next to each other:
//   out  is off by 2^-9 * sum(P/(1-p) * |v|) <= 2^-9 / (1-p), as |v| <= 1
//   dq   by 2^-9 * sum(|dS| * |k|) <= 2^-9 * largest |dP/(1-p) - D| / sqrt(head_dim) < 2^-9 * 4:
//        dP, a sum of head_dim products of variance 1/9, is below 4 sqrt(head_dim/9) in all but one
//        of 16000, and D is an average of such numbers
//   dk   by errors of random signs, 2^-9 * sqrt(sum(dS^2)) over queries, whose P falls with their
//        number: sum(1/i^2) < 2 a head, so that it is no more than dq's, and so is dv
void AddAttention(Comparison& result, const CpuKernels& kernels, const Both& both,
                  double rounding) {
  if (kernels.probabilities == CpuKernels::Probabilities::kFp32) return Add(result, both);
  const Floats want = Rounded(both.floats), got = Widen(both.halves);
  for (size_t i = 0; i < want.size(); ++i)
    result.Add({got[i]}, {want[i]}, std::abs(want[i]) / 128 + rounding);
}

Comparison HalfAttention(const CpuKernels& kernels) {
  Comparison result;
  constexpr AttentionShape kShapes[] = {{2, 7, 2, 5},       {1, 64, 2, 64},     {2, 49, 3, 33},
                                        {1, 1100, 2, 5, 1}, {1, 600, 4, 40, 2}, {1, 33, 2, 8, 1, 3},
                                        {1, 132, 2, 80, 1}, {1, 131, 1, 96},    {1, 132, 1, 128},
                                        {1, 70, 2, 256, 1}, {1, 37, 1, 201}};
  for (const AttentionShape& s : kShapes)
    for (const DropoutKey& key : kDropouts) {
      const int64_t kv = s.kv_heads == 0 ? s.heads : s.kv_heads, rows = s.batch * s.tokens;
      const int64_t n = rows * s.heads * s.head_dim, in = rows * (s.heads + 2 * kv) * s.head_dim;
      Both qkv(in, 1), dout(n, 2), out(n), dqkv(in);
      Floats lse[2] = {Floats(rows * s.heads), Floats(rows * s.heads)};
      Scratch scratch(cpu::AttentionScratchBytes<BFloat16>(s));
      ForBoth([&]<typename N>(N) {
        kernels.AttentionForward(AttentionForwardArgs<N>{s, qkv.data<N>(), out.data<N>(),
                                                         lse[Which<N>()].data(), key, scratch.get(),
                                                         scratch.helpers()});
      });
      const double rounding = 1 / 512.0 / (1 - key.p);
      AddAttention(result, kernels, out, rounding);
      AddSame(result, kernels, lse[1], lse[0]);
      out.floats = Widen(out.halves);
      ForBoth([&]<typename N>(N) {
        kernels.AttentionBackward(
            AttentionBackwardArgs<N>{s, qkv.data<N>(), out.data<N>(), lse[0].data(), dout.data<N>(),
                                     dqkv.data<N>(), key, scratch.get(), scratch.helpers()});
      });
      AddAttention(result, kernels, dqkv, 4 * rounding);
    }
  return result;
}

Comparison HalfNorm(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t channels : {1, 5, 64, 771})
    for (const Update update : {Update::kSet, Update::kAdd})
      for (const bool centered : {true, false}) {
        const int64_t rows = 19, n = rows * channels;
        Both x(n, 1), dy(n, 2), y(n), dx(n, 3);
        const Floats gamma = Numbers(channels, 4), beta = Numbers(channels, 5);
        Floats mean(rows), rstd(rows), dgamma[2], dbeta[2];
        ForBoth([&]<typename N>(N) {
          kernels.LayerNormForward(LayerNormForwardArgs<N>{
              rows, channels, x.data<N>(), gamma.data(), centered ? beta.data() : nullptr,
              y.data<N>(), centered ? mean.data() : nullptr, rstd.data()});
          Floats& to_gamma = dgamma[Which<N>()] = beta;
          Floats& to_beta = dbeta[Which<N>()] = gamma;
          kernels.LayerNormBackward(
              LayerNormBackwardArgs<N>{.rows = rows,
                                       .channels = channels,
                                       .dy = dy.data<N>(),
                                       .x = x.data<N>(),
                                       .gamma = gamma.data(),
                                       .mean = centered ? mean.data() : nullptr,
                                       .rstd = rstd.data(),
                                       .dx = dx.data<N>(),
                                       .dx_update = update,
                                       .dgamma = to_gamma.data(),
                                       .dbeta = centered ? to_beta.data() : nullptr,
                                       .update = update});
        });
        Add(result, y);
        Add(result, dx);
        AddSame(result, kernels, dgamma[1], dgamma[0]);
        AddSame(result, kernels, dbeta[1], dbeta[0]);
      }
  return result;
}

Comparison HalfElements(const CpuKernels& kernels) {
  Comparison result;
  for (const DropoutKey& key : kDropouts)
    for (const int64_t elements : {1, 31, 64, 72, 20001}) {
      const int64_t n = 3 * elements, first = n / 3 + (n > 5 && elements != 72 ? 1 : 0);
      Both x(n, 1), y(n, 2), dropped(n), sum(n), gelu(n), dgelu(n), swiglu(n), dswiglu(2 * n);
      Both gates(2 * n, 3), total(n);
      ForBoth([&]<typename N>(N) {
        const MaskedRange range = {first, n - first, elements};
        kernels.Dropout(DropoutArgs<N>{range, x.data<N>() + first, dropped.data<N>() + first, key});
        kernels.Residual(ResidualArgs<N>{range, x.data<N>() + first, y.data<N>() + first,
                                         sum.data<N>() + first, key});
        kernels.GeluForward(GeluForwardArgs<N>{n, x.data<N>(), gelu.data<N>()});
        kernels.GeluBackward(GeluBackwardArgs<N>{n, x.data<N>(), y.data<N>(), dgelu.data<N>()});
        kernels.SwiGluForward(SwiGluForwardArgs<N>{3, elements, gates.data<N>(), swiglu.data<N>()});
        kernels.SwiGluBackward(
            SwiGluBackwardArgs<N>{3, elements, gates.data<N>(), x.data<N>(), dswiglu.data<N>()});
        const N* parts[] = {x.data<N>(), y.data<N>(), gates.data<N>()};
        kernels.SumParts(SumPartsArgs<N>{n, 3, parts, total.data<N>()});
      });
      for (const Both* both : {&dropped, &sum, &gelu, &dgelu, &swiglu, &dswiglu, &total})
        Add(result, *both);
    }
  return result;
}

namespace {

void HalfLoss(const CpuKernels& kernels, int64_t stride, Comparison& result) {
  const int64_t rows = 9, vocabulary = 257;
  Floats large = Numbers(rows * stride, 1);
  for (float& x : large) x *= 10;
  large[1] = 40;  // of row 0, whose target has nearly all
  Both logits(large);
  const std::vector<int32_t> targets = {1, 0, 256, 3, 7, 8, 9, 10, 11};
  std::vector<int32_t> target = targets;
  target[3] = kIgnored;
  Floats statistics[2], parts[2], best[2];
  double loss[2];
  ForBoth([&]<typename N>(N) {
    const int64_t i = Which<N>();
    statistics[i].resize(2 * rows), parts[i].resize(3 * rows), best[i].resize(2);
    kernels.CrossEntropyForward(CrossEntropyForwardArgs<N>{
        rows, vocabulary, stride, logits.data<N>(), target.data(), statistics[i].data(), &loss[i]});
    kernels.CrossEntropyPart(CrossEntropyPartArgs<N>{rows, 100, stride, 3, logits.data<N>(),
                                                     targets.data(), parts[i].data()});
    kernels.Draw(DrawArgs<N>{.n = vocabulary,
                             .logits = logits.data<N>() + stride,
                             .temperature = 0.7f,
                             .seed = 3,
                             .best = best[i].data()});
    kernels.CrossEntropyBackward(CrossEntropyBackwardArgs<N>{rows, vocabulary - 2, stride, 0, 2,
                                                             logits.data<N>(), target.data(),
                                                             statistics[i].data(), 0.25f});
  });
  Add(result, logits);
  AddSame(result, kernels, statistics[1], statistics[0]);
  AddSame(result, kernels, parts[1], parts[0]);
  AddSame(result, kernels, best[1], best[0]);
  result.Add({static_cast<float>(loss[1] - loss[0])}, {0}, 0);
}

void HalfRows(const CpuKernels& kernels, int64_t channels, Comparison& result) {
  const int64_t tokens = 5;
  const Floats table = Numbers(7 * channels, 2), position = Numbers(tokens * channels, 3);
  const std::vector<int32_t> token = {3, 0, 3, 6, 1, 3, 3, 2, 0, 5};
  const DropoutKey key = kDropouts[1];
  Both out(10 * channels), dout(10 * channels, 4);
  Floats dtable[2], dposition[2], dbias[2];
  ForBoth([&]<typename N>(N) {
    const int64_t i = Which<N>();
    dtable[i] = table, dposition[i] = position, dbias[i] = position;
    kernels.EmbeddingForward(EmbeddingForwardArgs<N>{.batch = 2,
                                                     .tokens = tokens,
                                                     .channels = channels,
                                                     .vocabulary = 7,
                                                     .token = token.data(),
                                                     .table = table.data(),
                                                     .position = position.data(),
                                                     .out = out.data<N>()});
    kernels.EmbeddingBackward(EmbeddingBackwardArgs<N>{.batch = 2,
                                                       .tokens = tokens,
                                                       .channels = channels,
                                                       .vocabulary = 7,
                                                       .token = token.data(),
                                                       .dout = dout.data<N>(),
                                                       .dtable = dtable[i].data(),
                                                       .dposition = dposition[i].data(),
                                                       .dropout = key});
    kernels.BiasGradient(
        BiasGradientArgs<N>{10, channels, dout.data<N>(), dbias[i].data(), Update::kAdd});
  });
  Add(result, out);
  AddSame(result, kernels, dtable[1], dtable[0]);
  AddSame(result, kernels, dposition[1], dposition[0]);
  AddSame(result, kernels, dbias[1], dbias[0]);
}

void HalfRope(const CpuKernels& kernels, int64_t dim, int64_t row_stride, Comparison& result) {
  Both x(6 * row_stride, 5);
  const Floats angles = Numbers(3 * dim, 6);
  ForBoth([&]<typename N>(N) {
    kernels.Rope(RopeArgs<N>{2, 3, 2, dim, row_stride, angles.data(), angles.data() + 3 * dim / 2,
                             x.data<N>(), Turn::kBackward});
  });
  Add(result, x);
}

}  // namespace

// Rows that begin at multiples of 16 bytes, and others.
Comparison HalfEnds(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t stride : {260, 264}) HalfLoss(kernels, stride, result);
  for (const int64_t channels : {37, 40}) HalfRows(kernels, channels, result);
  HalfRope(kernels, 34, 2 * 34 + 5, result);
  HalfRope(kernels, 32, 2 * 32 + 8, result);
  return result;
}

}  // namespace pp::kernels
