// Kernels of BFloat16 and Float16 beside the same kernels of floats, which have cases of their own:
// from the same numbers they compute the same, and round it once. Products on AMX, of BFloat16
// alone, sum in another order.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tests/kernel_cases.h"

namespace pp::kernels {
namespace {

template <TwoBytes H>
using Halves = std::vector<H>;

// From 1 to the next number.
template <TwoBytes H>
constexpr double kUnit = std::is_same_v<H, BFloat16> ? 0x1p-7 : 0x1p-10;
// Between the smallest numbers, where those of the tests come to it.
template <TwoBytes H>
constexpr double kSmallest = std::is_same_v<H, BFloat16> ? 0 : 0x1p-24;

double NumberOf(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
// All that are not negative, in their order. What is infinite stands where the next one would be.
const Doubles& Sizes() {
  static const Doubles sizes = [] {
    Doubles made(0x7c01);
    for (int bits = 0; bits <= 0x7c00; ++bits) {
      const int exponent = bits >> 10, units = bits & 0x3ff;
      made[bits] = exponent == 0 ? units * 0x1p-24 : std::ldexp(units + 1024, exponent - 25);
    }
    return made;
  }();
  return sizes;
}
double NumberOf(Float16 x) {
  const int size = x.bits & 0x7fff;
  if (size > 0x7c00) return std::nan("");
  return (x.bits >> 15 != 0 ? -1 : 1) * (size == 0x7c00 ? HUGE_VAL : Sizes()[size]);
}

// To the nearest, by comparing the two that are next to it.
void ToNearest(float x, BFloat16* out) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto low = static_cast<uint16_t>(bits >> 16);
  const uint32_t rest = bits & 0xffff;
  const bool up = rest > 0x8000 || (rest == 0x8000 && low % 2 == 1);
  *out = {static_cast<uint16_t>(std::isnan(x) ? low | 0x40 : low + up)};
}
void ToNearest(float x, Float16* out) {
  const double size = std::abs(double{x});
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  if (std::isnan(x)) return void(*out = {static_cast<uint16_t>(sign | 0x7e00)});
  const Doubles& sizes = Sizes();
  const auto above = std::lower_bound(sizes.begin(), sizes.end(), size);
  auto at = std::min<int64_t>(above - sizes.begin(), 0x7c00);
  if (at > 0 && size < sizes[at]) {
    const double down = size - sizes[at - 1], up = sizes[at] - size;
    if (down < up || (down == up && at % 2 == 1)) --at;
  }
  *out = {static_cast<uint16_t>(sign | at)};
}

template <TwoBytes H>
Halves<H> Narrow(const Floats& x) {
  Halves<H> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) ToNearest(x[i], &out[i]);
  return out;
}

template <TwoBytes H>
Floats Widen(const Halves<H>& x) {
  Floats out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = static_cast<float>(NumberOf(x[i]));
  return out;
}

template <TwoBytes H>
Floats Rounded(const Floats& x) {
  return Widen(Narrow<H>(x));
}

// Numbers that are both.
template <TwoBytes H>
struct Both {
  Floats floats;
  Halves<H> halves;

  explicit Both(int64_t n) : floats(n), halves(n) {}
  Both(int64_t n, uint32_t seed) : Both(Numbers(n, seed)) {}
  explicit Both(const Floats& x) : floats(Rounded<H>(x)), halves(Narrow<H>(x)) {}

  template <typename N>
  N* data() {
    if constexpr (std::is_same_v<N, float>) {
      return floats.data();
    } else {
      return halves.data();
    }
  }
};

// How far from x the next number is, at most.
template <TwoBytes H>
double NextNumber(double x) {
  return std::abs(x) * kUnit<H> + kSmallest<H>;
}

template <TwoBytes H>
void Add(Comparison& result, const Both<H>& both) {
  const Floats want = Rounded<H>(both.floats);
  result.Add(Widen(both.halves), Doubles(want.begin(), want.end()), 0);
}

// With errors before they were rounded, which may then go to the next number.
template <TwoBytes H>
void AddNear(Comparison& result, const Both<H>& both, double error) {
  const Floats want = Rounded<H>(both.floats), got = Widen(both.halves);
  for (size_t i = 0; i < want.size(); ++i)
    result.AddOne(got[i], want[i], NextNumber<H>(want[i]) + error);
}

// Of what is fp32 in both: sums of a hundred numbers of order 1, at most.
void AddSame(Comparison& result, const CpuKernels& kernels, const Floats& got, const Floats& want) {
  const bool same = kernels.order == CpuKernels::Order::kSame;
  result.Add(got, Doubles(want.begin(), want.end()), same ? 0 : 100 * kEpsilon);
}

// f(N()) for both types.
template <TwoBytes H, typename F>
void ForBoth(const F& f) {
  f(float());
  f(H());
}

template <typename N>
int64_t Which() {
  return std::is_same_v<N, float> ? 0 : 1;
}

}  // namespace

template <TwoBytes H>
Comparison HalfNumbers(const CpuKernels& kernels) {
  Comparison result;
  // Ends, halves of a unit, and what is above the largest one.
  const uint32_t bits[] = {0x00000000, 0x80000000, 0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff,
                           0xbf808000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7f7f7fff, 0x00008000,
                           0x00018000, 0x7f800001, 0xffc00001, 0x7fffffff, 0x477fff80, 0x12345678,
                           0x477fe000, 0x477fefff, 0x477ff000, 0xc7800000, 0x38800000, 0x387fffff,
                           0x387fe000, 0x38000000, 0x33800000, 0x33000000, 0x33000001, 0xb3c00000,
                           0x33bfffff, 0x32ffffff, 0x3f801000, 0x3f803000, 0x3f801001, 0x3f800fff};
  Floats x(std::size(bits));
  std::memcpy(x.data(), bits, sizeof(bits));
  Halves<H> y(x.size());
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
  const Halves<H> want = Narrow<H>(x);
  // One NaN is as good as another.
  const auto bits_of = [](H half) { return std::isnan(NumberOf(half)) ? 0x7fff : half.bits; };
  for (size_t i = 0; i < x.size(); ++i)
    result.AddOne(static_cast<float>(bits_of(y[i])), double(bits_of(want[i])), 0);
  // All numbers, as the gradients of such a row.
  Halves<H> all;
  for (int bits = 0; bits < 0x10000; ++bits)
    if (const H half{static_cast<uint16_t>(bits)}; !std::isnan(NumberOf(half))) all.push_back(half);
  const auto numbers = static_cast<int64_t>(all.size());
  Floats row(all.size(), 0);
  kernels.EmbeddingBackward({.batch = 1,
                             .tokens = 1,
                             .channels = numbers,
                             .vocabulary = 1,
                             .token = &token,
                             .dout = all.data(),
                             .dtable = row.data()});
  for (size_t i = 0; i < all.size(); ++i) {
    const double number = NumberOf(all[i]);
    const bool same = std::isinf(number) && row[i] == static_cast<float>(number);
    result.AddOne(same ? 0 : row[i], same ? 0 : number, 0);
  }
  return result;
}

template <TwoBytes H>
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
  const bool same =
      kernels.order == CpuKernels::Order::kSame && !(amx && std::is_same_v<H, BFloat16>);
  Comparison result;
  for (const Size& s : kSizes)
    for (const Operands operands : {Operands::kNN, Operands::kNT, Operands::kTN})
      for (const int variant : {0, 1, 2, 3}) {  // plain, bias, residual, +=, to floats
        const int64_t ldc = s.n + 3;
        Both<H> a(s.m * s.k, 1), b(s.k * s.n, 2), residual(s.m * ldc, 3), c(Numbers(s.m * ldc, 4));
        const Floats bias = Numbers(s.n, 5), weights = Numbers(s.k * s.n, 2);
        Floats sums = c.floats;
        MatmulShape shape = {.m = s.m, .n = s.n, .k = s.k, .operands = operands};
        if (variant == 1) shape.bias = WithBias::kYes;
        if (variant == 2) shape.residual = WithResidual::kYes;
        if (variant == 3) shape.update = Update::kAdd;
        shape.lda = operands == Operands::kTN ? s.m : s.k;
        shape.ldb = operands == Operands::kNT ? s.k : s.n;
        shape.ldc = ldc;
        Scratch scratch(cpu::Matmul::ScratchBytes(kForwardNumbers<H>));
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
        shape.numbers = to_sums ? kWeightNumbers<H> : kForwardNumbers<H>;
        args.b = to_sums ? static_cast<const void*>(b.halves.data()) : weights.data();
        args.c = to_sums ? static_cast<void*>(sums.data()) : c.halves.data();
        kernels.MatmulRun({.shape = shape, .args = args, .threads = static_cast<int>(Threads())});
        const Floats got = to_sums ? sums : Widen(c.halves);
        const Floats want = to_sums ? c.floats : Rounded<H>(c.floats);
        const double error = kEpsilon * (static_cast<double>(s.k) + 4);
        for (size_t i = 0; i < want.size(); ++i) {
          // Where the order of a sum differs, it may be rounded to the next number.
          const double unit = to_sums ? 0 : NextNumber<H>(want[i]) + error;
          result.AddOne(got[i], want[i], same ? 0 : error + unit);
        }
      }
  return result;
}

// Products with GELU, and with the way back through it. Whether the formula gets the product P or P
// rounded, by up to 2^-9 of itself (Float16: 2^-12), is left open: a slope of at most 1.13 makes no
// more of that.
template <TwoBytes H>
Comparison HalfMatmulGelu(const CpuKernels& kernels) {
  struct Size {
    int64_t m, n, k;
  };
  constexpr Size kSizes[] = {{1, 8, 8}, {24, 64, 40}, {7, 264, 808}, {130, 1024, 16}};
  // A GPU's own tanh, which cuBLASLt may take, is right to 2^-11 of itself.
  const double of_tanh = kernels.order == CpuKernels::Order::kSame ? 0 : 0x1p-10;
  Comparison result;
  for (const Size& s : kSizes)
    for (const Operands operands : {Operands::kNN, Operands::kNT})
      for (const Epilogue epilogue : {Epilogue::kGelu, Epilogue::kGeluBackward}) {
        const bool forward = epilogue == Epilogue::kGelu, turned = operands == Operands::kNT;
        const Both<H> a(s.m * s.k, 1), b(s.k * s.n, 2), bias(s.n, 3);
        Both<H> aux(s.m * s.n, 4), c(s.m * s.n, 5);
        Scratch scratch(cpu::Matmul::ScratchBytes(kForwardNumbers<H>));
        kernels.MatmulRun({.shape = {.m = s.m,
                                     .n = s.n,
                                     .k = s.k,
                                     .operands = operands,
                                     .bias = forward ? WithBias::kYes : WithBias::kNo,
                                     .lda = s.k,
                                     .ldb = turned ? s.k : s.n,
                                     .ldc = s.n,
                                     .numbers = kForwardNumbers<H>,
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
          result.AddOne(got[i], want,
                        (std::abs(want) + 1.13 * std::abs(p)) * kUnit<H> / 2 +
                            std::abs(p) * of_tanh + 2 * error + kSmallest<H>);
          result.AddOne(saved[i], x,
                        forward ? std::abs(x) * kUnit<H> / 2 + error + kSmallest<H> : 0);
        }
      }
  return result;
}

// Of sums over keys or queries of P*x or dS*x. Where P and dS are rounded, each by up to 2^-9 of
// itself (BFloat16; Float16: 2^-12), and the results of both types may be rounded to numbers next
// to each other:
//   out  is off by 2^-9 * sum(P/(1-p) * |v|) <= 2^-9 / (1-p), as |v| <= 1
//   dq   by 2^-9 * sum(|dS| * |k|) <= 2^-9 * largest |dP/(1-p) - D| / sqrt(head_dim) < 2^-9 * 4:
//        dP, a sum of head_dim products of variance 1/9, is below 4 sqrt(head_dim/9) in all but one
//        of 16000, and D is an average of such numbers
//   dk   by errors of random signs, 2^-9 * sqrt(sum(dS^2)) over queries, whose P falls with their
//        number: sum(1/i^2) < 2 a head, so that it is no more than dq's, and so is dv
template <TwoBytes H>
void AddAttention(Comparison& result, const CpuKernels& kernels, const Both<H>& both,
                  double rounding) {
  if (kernels.probabilities == CpuKernels::Probabilities::kFp32) return Add(result, both);
  AddNear(result, both, rounding);
}

template <TwoBytes H>
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
      Both<H> qkv(in, 1), dout(n, 2), out(n), dqkv(in);
      Floats lse[2] = {Floats(rows * s.heads), Floats(rows * s.heads)};
      Scratch scratch(cpu::AttentionScratchBytes<H>(s));
      ForBoth<H>([&]<typename N>(N) {
        kernels.AttentionForward(
            AttentionForwardArgs<N>{s, qkv.template data<N>(), out.template data<N>(),
                                    lse[Which<N>()].data(), key, scratch.get(), scratch.helpers()});
      });
      const double rounding = kUnit<H> / 4 / (1 - key.p);
      AddAttention(result, kernels, out, rounding);
      AddSame(result, kernels, lse[1], lse[0]);
      out.floats = Widen(out.halves);
      ForBoth<H>([&]<typename N>(N) {
        kernels.AttentionBackward(AttentionBackwardArgs<N>{
            s, qkv.template data<N>(), out.template data<N>(), lse[0].data(),
            dout.template data<N>(), dqkv.template data<N>(), key, scratch.get(),
            scratch.helpers()});
      });
      AddAttention(result, kernels, dqkv, 4 * rounding);
    }
  return result;
}

template <TwoBytes H>
Comparison HalfNorm(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t channels : {1, 5, 64, 768, 771, 2056, 8200})
    for (const Update update : {Update::kSet, Update::kAdd})
      for (const bool centered : {true, false}) {
        const int64_t rows = channels > 1000 ? 3 : 19, n = rows * channels;
        Both<H> x(n, 1), dy(n, 2), y(n), dx(n, 3);
        const Floats gamma = Numbers(channels, 4), beta = Numbers(channels, 5);
        Floats mean(rows), rstd(rows), dgamma[2], dbeta[2];
        ForBoth<H>([&]<typename N>(N) {
          kernels.LayerNormForward(LayerNormForwardArgs<N>{
              rows, channels, x.template data<N>(), gamma.data(), centered ? beta.data() : nullptr,
              y.template data<N>(), centered ? mean.data() : nullptr, rstd.data()});
          Floats& to_gamma = dgamma[Which<N>()] = beta;
          Floats& to_beta = dbeta[Which<N>()] = gamma;
          kernels.LayerNormBackward(
              LayerNormBackwardArgs<N>{.rows = rows,
                                       .channels = channels,
                                       .dy = dy.template data<N>(),
                                       .x = x.template data<N>(),
                                       .gamma = gamma.data(),
                                       .mean = centered ? mean.data() : nullptr,
                                       .rstd = rstd.data(),
                                       .dx = dx.template data<N>(),
                                       .dx_update = update,
                                       .dgamma = to_gamma.data(),
                                       .dbeta = centered ? to_beta.data() : nullptr,
                                       .update = update});
        });
        for (const Both<H>* both : {&y, &dx})
          kernels.order == CpuKernels::Order::kSame ? Add(result, *both)
                                                    : AddNear(result, *both, 100 * kEpsilon);
        AddSame(result, kernels, dgamma[1], dgamma[0]);
        AddSame(result, kernels, dbeta[1], dbeta[0]);
      }
  return result;
}

template <TwoBytes H>
Comparison HalfElements(const CpuKernels& kernels) {
  Comparison result;
  for (const DropoutKey& key : kDropouts)
    for (const int64_t elements : {1, 31, 64, 72, 20001}) {
      const int64_t n = 3 * elements, first = n / 3 + (n > 5 && elements != 72 ? 1 : 0);
      Both<H> x(n, 1), y(n, 2), dropped(n), sum(n), gelu(n), dgelu(n), swiglu(n), dswiglu(2 * n);
      Both<H> gates(2 * n, 3), total(n);
      ForBoth<H>([&]<typename N>(N) {
        const MaskedRange range = {first, n - first, elements};
        kernels.Dropout(DropoutArgs<N>{range, x.template data<N>() + first,
                                       dropped.template data<N>() + first, key});
        kernels.Residual(ResidualArgs<N>{range, x.template data<N>() + first,
                                         y.template data<N>() + first,
                                         sum.template data<N>() + first, key});
        kernels.GeluForward(GeluForwardArgs<N>{n, x.template data<N>(), gelu.template data<N>()});
        kernels.GeluBackward(GeluBackwardArgs<N>{n, x.template data<N>(), y.template data<N>(),
                                                 dgelu.template data<N>()});
        kernels.SwiGluForward(
            SwiGluForwardArgs<N>{3, elements, gates.template data<N>(), swiglu.template data<N>()});
        kernels.SwiGluBackward(SwiGluBackwardArgs<N>{3, elements, gates.template data<N>(),
                                                     x.template data<N>(),
                                                     dswiglu.template data<N>()});
        const N* parts[] = {x.template data<N>(), y.template data<N>(), gates.template data<N>()};
        kernels.SumParts(SumPartsArgs<N>{n, 3, parts, total.template data<N>()});
      });
      for (const Both<H>* both : {&dropped, &sum, &gelu, &dgelu, &swiglu, &dswiglu, &total})
        Add(result, *both);
    }
  return result;
}

namespace {

template <TwoBytes H>
void HalfLoss(const CpuKernels& kernels, int64_t stride, Comparison& result) {
  const int64_t rows = 9, vocabulary = 257;
  Floats large = Numbers(rows * stride, 1);
  for (float& x : large) x *= 10;
  large[1] = 40;  // of row 0, whose target has nearly all
  Both<H> logits(large);
  const std::vector<int32_t> targets = {1, 0, 256, 3, 7, 8, 9, 10, 11};
  std::vector<int32_t> target = targets;
  target[3] = kIgnored;
  Floats statistics[2], parts[2], best[2];
  double loss[2];
  ForBoth<H>([&]<typename N>(N) {
    const int64_t i = Which<N>();
    statistics[i].resize(2 * rows), parts[i].resize(3 * rows), best[i].resize(2);
    kernels.CrossEntropyForward(CrossEntropyForwardArgs<N>{rows, vocabulary, stride,
                                                           logits.template data<N>(), target.data(),
                                                           statistics[i].data(), &loss[i]});
    kernels.CrossEntropyPart(CrossEntropyPartArgs<N>{
        rows, 100, stride, 3, logits.template data<N>(), targets.data(), parts[i].data()});
    kernels.Draw(DrawArgs<N>{.n = vocabulary,
                             .logits = logits.template data<N>() + stride,
                             .temperature = 0.7f,
                             .seed = 3,
                             .best = best[i].data()});
    kernels.CrossEntropyBackward(
        CrossEntropyBackwardArgs<N>{rows, vocabulary - 2, stride, 0, 2, logits.template data<N>(),
                                    target.data(), statistics[i].data(), 0.25f});
  });
  Add(result, logits);
  AddSame(result, kernels, statistics[1], statistics[0]);
  AddSame(result, kernels, parts[1], parts[0]);
  AddSame(result, kernels, best[1], best[0]);
  result.AddOne(static_cast<float>(loss[1] - loss[0]), 0, 0);
}

template <TwoBytes H>
void HalfRows(const CpuKernels& kernels, int64_t channels, Comparison& result) {
  const int64_t tokens = 5;
  const Floats table = Numbers(7 * channels, 2), position = Numbers(tokens * channels, 3);
  const std::vector<int32_t> token = {3, 0, 3, 6, 1, 3, 3, 2, 0, 5};
  const DropoutKey key = kDropouts[1];
  Both<H> out(10 * channels), dout(10 * channels, 4);
  Floats dtable[2], dposition[2], dbias[2];
  ForBoth<H>([&]<typename N>(N) {
    const int64_t i = Which<N>();
    dtable[i] = table, dposition[i] = position, dbias[i] = position;
    kernels.EmbeddingForward(EmbeddingForwardArgs<N>{.batch = 2,
                                                     .tokens = tokens,
                                                     .channels = channels,
                                                     .vocabulary = 7,
                                                     .token = token.data(),
                                                     .table = table.data(),
                                                     .position = position.data(),
                                                     .out = out.template data<N>()});
    kernels.EmbeddingBackward(EmbeddingBackwardArgs<N>{.batch = 2,
                                                       .tokens = tokens,
                                                       .channels = channels,
                                                       .vocabulary = 7,
                                                       .token = token.data(),
                                                       .dout = dout.template data<N>(),
                                                       .dtable = dtable[i].data(),
                                                       .dposition = dposition[i].data(),
                                                       .dropout = key});
    kernels.BiasGradient(
        BiasGradientArgs<N>{10, channels, dout.template data<N>(), dbias[i].data(), Update::kAdd});
  });
  Add(result, out);
  AddSame(result, kernels, dtable[1], dtable[0]);
  AddSame(result, kernels, dposition[1], dposition[0]);
  AddSame(result, kernels, dbias[1], dbias[0]);
}

template <TwoBytes H>
void HalfRope(const CpuKernels& kernels, int64_t dim, int64_t row_stride, Comparison& result) {
  Both<H> x(6 * row_stride, 5);
  const Floats angles = Numbers(3 * dim, 6);
  ForBoth<H>([&]<typename N>(N) {
    kernels.Rope(RopeArgs<N>{2, 3, 2, dim, row_stride, angles.data(), angles.data() + 3 * dim / 2,
                             x.template data<N>(), Turn::kBackward});
  });
  Add(result, x);
}

}  // namespace

// Rows that begin at multiples of 16 bytes, and others.
template <TwoBytes H>
Comparison HalfEnds(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t stride : {260, 264}) HalfLoss<H>(kernels, stride, result);
  for (const int64_t channels : {37, 40}) HalfRows<H>(kernels, channels, result);
  HalfRope<H>(kernels, 34, 2 * 34 + 5, result);
  HalfRope<H>(kernels, 32, 2 * 32 + 8, result);
  return result;
}

#define PP_OF(H, ...)                                               \
  template Comparison HalfNumbers<H>(const CpuKernels& kernels);    \
  template Comparison HalfMatmul<H>(const CpuKernels& kernels);     \
  template Comparison HalfMatmulGelu<H>(const CpuKernels& kernels); \
  template Comparison HalfAttention<H>(const CpuKernels& kernels);  \
  template Comparison HalfNorm<H>(const CpuKernels& kernels);       \
  template Comparison HalfElements<H>(const CpuKernels& kernels);   \
  template Comparison HalfEnds<H>(const CpuKernels& kernels);
PP_HALVES(PP_OF)

}  // namespace pp::kernels
