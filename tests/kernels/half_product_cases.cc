// Products and attention of BFloat16 and Float16 against the same kernels of floats, which have
// their own cases. Products on AMX, of BFloat16 only, and on a GPU sum in another order; the latter
// are compared with a CPU's.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tests/kernels/first_key_lists.h"
#include "tests/kernels/half_numbers.h"

namespace pp::kernels {

namespace {

// With `gap` elements after each row of C.
template <TwoBytes H>
Comparison HalfMatmul(const CpuKernels& kernels, const ProductSize& s, int64_t gap) {
  const bool amx = std::strcmp(kernels.isa, "amx") == 0;
  const bool gpu = kernels.order != CpuKernels::Order::kSame;
  const CpuKernels& plain = gpu   ? SupportedCpuKernels().front()
                            : amx ? *(SupportedCpuKernels().end() - 2)
                                  : kernels;
  const bool same = !gpu && !(amx && std::is_same_v<H, BFloat16>);
  Comparison result;
  for (const Operands operands : {Operands::kNN, Operands::kNT, Operands::kTN})
    for (const int variant : {0, 1, 2, 3}) {  // plain, bias, residual, +=, to floats
      const int64_t ldc = s.n + gap;
      Both<H> a(s.m * s.k, 1), b(s.k * s.n, 2), residual(s.m * ldc, 3), c(Numbers(s.m * ldc, 4));
      const Floats bias = Rounded<H>(Numbers(s.n, 5)), weights = Numbers(s.k * s.n, 2);
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
      const bool twice = kernels.products == CpuKernels::Products::kRounded;
      for (size_t i = 0; i < want.size(); ++i) {
        // If the order of a sum differs, it may be rounded to the neighbouring value.
        const double unit = to_sums ? 0 : NextNumber<H>(want[i]) + error;
        const int64_t column = static_cast<int64_t>(i) % ldc;
        const double added = variant == 1 && column < s.n ? bias[column]
                             : variant == 2               ? residual.floats[i]
                                                          : 0;
        const double product = added != 0 && twice ? NextNumber<H>(want[i] - added) / 2 : 0;
        result.AddOne(got[i], want[i], same ? 0 : error + unit + product);
      }
    }
  return result;
}

// Products with GELU, and with GELU's backward. Whether the formula gets the product P or P
// rounded, by up to 2^-9 of itself (Float16: 2^-12), is left open: a slope of at most 1.13
// amplifies that no further.
template <TwoBytes H>
Comparison HalfMatmulGelu(const CpuKernels& kernels, const ProductSize& s) {
  // A GPU's own tanh, which cuBLASLt may take, is right to 2^-11 of itself.
  const double of_tanh = kernels.order == CpuKernels::Order::kSame ? 0 : 0x1p-10;
  Comparison result;
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
                      (std::abs(want) + 1.13 * std::abs(p)) * kUnit<H> / 2 + std::abs(p) * of_tanh +
                          2 * error + kSmallest<H>);
        result.AddOne(saved[i], x, forward ? std::abs(x) * kUnit<H> / 2 + error + kSmallest<H> : 0);
      }
    }
  return result;
}

}  // namespace

// Edges of tiles, panels, blocks and chunks of k, also of those of one part (1152); one row, one
// column, and none of these. Gaps make rows of odd lengths.
template <TwoBytes H>
std::vector<Case> HalfMatmulCases() {
  const std::string type = std::is_same_v<H, BFloat16> ? "bfloat16: " : "float16: ";
  std::vector<Case> cases;
  for (const ProductSize& size : {ProductSize{1, 1, 1},
                                  {3, 1, 5},
                                  {1, 72, 40},
                                  {8, 48, 16},
                                  {7, 257, 33},
                                  {259, 50, 9},
                                  {5, 800, 18},
                                  {9, 65, 801},
                                  {24, 64, 390},
                                  {130, 20, 400},
                                  {40, 33, 1200},
                                  {33, 1600, 35},
                                  {64, 128, 96}})
    cases.push_back({type + "matmul " + size.Text(), [size](const CpuKernels& kernels) {
                       return HalfMatmul<H>(kernels, size, 0);
                     }});
  for (const ProductSize& size :
       {ProductSize{3, 1, 5}, {7, 257, 33}, {24, 64, 390}, {40, 33, 1200}, {64, 128, 96}})
    cases.push_back(
        {type + "matmul " + size.Text() + " with gaps",
         [size](const CpuKernels& kernels) { return HalfMatmul<H>(kernels, size, 3); }});
  for (const ProductSize& size :
       {ProductSize{1, 8, 8}, {24, 64, 40}, {7, 264, 808}, {130, 1024, 16}})
    cases.push_back(
        {type + "matmul " + size.Text() + " with GELU",
         [size](const CpuKernels& kernels) { return HalfMatmulGelu<H>(kernels, size); }});
  return cases;
}

// Of sums over keys or queries of P*x or dS*x. Where P and dS are rounded, each by up to 2^-9 of
// itself (BFloat16; Float16: 2^-12), and the results of both types may be rounded to adjacent
// values:
//   out  is off by 2^-9 * sum(P/(1-p) * |v|) <= 2^-9 / (1-p), as |v| <= 1
//   dq   by 2^-9 * sum(|dS| * |k|) <= 2^-9 * largest |dP/(1-p) - D| / sqrt(head_dim) < 2^-9 * 4:
//        dP, a sum of head_dim products of variance 1/9, is below 4 sqrt(head_dim/9) in all but one
//        of 16000, and D is an average of such numbers
//   dk   by errors of random signs, 2^-9 * sqrt(sum(dS^2)) over queries, whose P falls with their
//        number: sum(1/i^2) < 2 per head, so it is no more than dq's, and so is dv
template <TwoBytes H>
void AddAttention(Comparison& result, const CpuKernels& kernels, const Both<H>& both,
                  double rounding) {
  if (kernels.probabilities == CpuKernels::Probabilities::kFp32) return Add(result, both);
  AddNear(result, both, rounding);
}

// Those figures are of many keys, whose errors differ. One alone is off by up to 2^-8 (Float16:
// 2^-11), half a unit, and a list has many rows of few keys.
template <TwoBytes H>
void CompareAttention(Comparison& result, const CpuKernels& kernels, const AttentionShape& s,
                      const DropoutKey& key, const FirstKeyList& first) {
  const int64_t kv = s.kv_heads == 0 ? s.heads : s.kv_heads, rows = s.batch * s.tokens;
  const int64_t n = rows * s.heads * s.head_dim, in = rows * (s.heads + 2 * kv) * s.head_dim;
  Both<H> qkv(in, 1), dout(n, 2), out(n), dqkv(in);
  Floats lse[2] = {Floats(rows * s.heads), Floats(rows * s.heads)};
  Scratch scratch(cpu::AttentionScratchBytes<H>(s));
  ForBoth<H>([&]<typename N>(N) {
    kernels.AttentionForward(AttentionForwardArgs<N>{
        s, qkv.template data<N>(), out.template data<N>(), lse[Which<N>()].data(), key,
        first.keys(), scratch.get(), scratch.helpers()});
  });
  const double rounding = kUnit<H> / (first.at.empty() ? 4 : 2) / (1 - key.p);
  AddAttention(result, kernels, out, rounding);
  AddSame(result, kernels, lse[1], lse[0]);
  out.floats = Widen(out.halves);
  ForBoth<H>([&]<typename N>(N) {
    kernels.AttentionBackward(AttentionBackwardArgs<N>{
        s, qkv.template data<N>(), out.template data<N>(), lse[0].data(), dout.template data<N>(),
        dqkv.template data<N>(), key, first.keys(), scratch.get(), scratch.helpers()});
  });
  AddAttention(result, kernels, dqkv, 4 * rounding);
}

template <TwoBytes H>
Comparison HalfAttention(const CpuKernels& kernels) {
  Comparison result;
  constexpr AttentionShape kShapes[] = {{2, 7, 2, 5},       {1, 64, 2, 64},     {2, 49, 3, 33},
                                        {1, 1100, 2, 5, 1}, {1, 600, 4, 40, 2}, {1, 33, 2, 8, 1, 3},
                                        {1, 132, 2, 80, 1}, {1, 131, 1, 96},    {1, 132, 1, 128},
                                        {1, 70, 2, 256, 1}, {1, 37, 1, 201},    {2, 300, 2, 64, 1},
                                        {1, 128, 1, 64},    {1, 330, 4, 128, 2}};
  for (const AttentionShape& s : kShapes)
    for (const DropoutKey& key : kDropouts) CompareAttention<H>(result, kernels, s, key, {});
  return result;
}

// All lists with heads that warpgroups compute, some with the others.
template <TwoBytes H>
Comparison HalfAttentionFirstKeys(const CpuKernels& kernels) {
  Comparison result;
  constexpr AttentionShape kShapes[] = {{2, 150, 2, 64, 1}, {1, 201, 2, 128, 1}, {1, 133, 1, 33},
                                        {1, 100, 1, 80},    {1, 98, 1, 95},      {1, 70, 1, 200}};
  for (const AttentionShape& s : kShapes) {
    size_t number = 0;
    for (const FirstKeyList& first : FirstKeyLists(s))
      if (s.head_dim % 64 == 0 || number++ % 3 == static_cast<size_t>(s.tokens) % 3)
        CompareAttention<H>(result, kernels, s, kDropouts[s.head_dim % 64 != 0], first);
  }
  // Sums over three blocks of keys are kept in floats.
  constexpr AttentionShape kLong = {1, 1100, 2, 5, 1};
  CompareAttention<H>(result, kernels, kLong, kDropouts[1], WindowOf(kLong.tokens, 40));
  CompareAttention<H>(result, kernels, kLong, kDropouts[1],
                      DocumentsAt(kLong.tokens, {0, 500, 530, 600}));
  return result;
}

#define PP_OF(H, ...)                                              \
  template std::vector<Case> HalfMatmulCases<H>();                 \
  template Comparison HalfAttention<H>(const CpuKernels& kernels); \
  template Comparison HalfAttentionFirstKeys<H>(const CpuKernels& kernels);
PP_HALVES(PP_OF)

}  // namespace pp::kernels
