// Kernels of BFloat16 and Float16 against the same kernels of floats, which have their own cases:
// from the same values they compute the same, and round it once.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "tests/kernels/half_numbers.h"

namespace pp::kernels {

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
  // All values, as the gradients of such a row.
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

// With the sanitizers' instrumentation, the compiler fuses different multiplications and additions
// for one type than for the other.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

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
          kernels.LayerNormBackward(LayerNormBackwardArgs<N>{
              .rows = rows,
              .channels = channels,
              .dy = dy.template data<N>(),
              .x = x.template data<N>(),
              .gamma = gamma.data(),
              .mean = centered ? mean.data() : nullptr,
              .rstd = rstd.data(),
              .dx = dx.template data<N>(),
              .add = update == Update::kAdd ? dx.template data<N>() : nullptr,
              .dgamma = to_gamma.data(),
              .dbeta = centered ? to_beta.data() : nullptr,
              .update = update});
        });
        for (const Both<H>* both : {&y, &dx})
          kernels.order == CpuKernels::Order::kSame && !kSanitized
              ? Add(result, *both)
              : AddNear(result, *both, 100 * kEpsilon);
        AddSame(result, kernels, dgamma[1], dgamma[0]);
        AddSame(result, kernels, dbeta[1], dbeta[0]);
      }
  return result;
}

template <TwoBytes H>
void HalfHeadNorm(const CpuKernels& kernels, int64_t head_dim, Comparison& result) {
  const int64_t rows = 5, heads = 4, kv_heads = 2, n = rows * 8 * head_dim;
  Both<H> x(n, 1), y(n), d(n, 2);
  const Floats q_gamma = Numbers(head_dim, 3), k_gamma = Numbers(head_dim, 4);
  Floats rstd(rows * 6), dgamma[2];
  ForBoth<H>([&]<typename N>(N) {
    kernels.HeadNormForward(
        HeadNormForwardArgs<N>{rows, heads, kv_heads, head_dim, x.template data<N>(),
                               q_gamma.data(), k_gamma.data(), y.template data<N>(), rstd.data()});
    Floats& gradients = dgamma[Which<N>()] = Floats(2 * head_dim);
    kernels.HeadNormBackward(HeadNormBackwardArgs<N>{
        rows, heads, kv_heads, head_dim, x.template data<N>(), q_gamma.data(), k_gamma.data(),
        rstd.data(), d.template data<N>(), gradients.data()});
  });
  for (const Both<H>* both : {&y, &d})
    kernels.order == CpuKernels::Order::kSame && !kSanitized
        ? Add(result, *both)
        : AddNear(result, *both, 100 * kEpsilon);
  AddSame(result, kernels, dgamma[1], dgamma[0]);
}

template <TwoBytes H>
Comparison HalfElements(const CpuKernels& kernels) {
  Comparison result;
  for (const DropoutKey& key : kDropouts)
    for (const int64_t elements : {1, 31, 64, 72, 20001}) {
      const int64_t n = 3 * elements, first = n / 3 + (n > 5 && elements != 72 ? 1 : 0);
      Both<H> x(n, 1), y(n, 2), dropped(n), sum(n), gelu(n), dgelu(n), swiglu(n), dswiglu(2 * n);
      Both<H> gates(2 * n, 3), total(n), exact(n), dexact(n), scaled(n, 4);
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
        kernels.GeluForward(GeluForwardArgs<N>{n, x.template data<N>(), exact.template data<N>(),
                                               GeluForm::kExact});
        kernels.GeluBackward(GeluBackwardArgs<N>{n, x.template data<N>(), y.template data<N>(),
                                                 dexact.template data<N>(), GeluForm::kExact});
        kernels.SwiGluForward(
            SwiGluForwardArgs<N>{3, elements, gates.template data<N>(), swiglu.template data<N>()});
        kernels.SwiGluBackward(SwiGluBackwardArgs<N>{3, elements, gates.template data<N>(),
                                                     x.template data<N>(),
                                                     dswiglu.template data<N>()});
        kernels.Scale(ScaleArgs<N>{n, scaled.template data<N>(), 0.7f});
        const N* parts[] = {x.template data<N>(), y.template data<N>(), gates.template data<N>()};
        kernels.SumParts(SumPartsArgs<N>{n, 3, parts, total.template data<N>()});
      });
      for (const Both<H>* both :
           {&dropped, &sum, &gelu, &dgelu, &exact, &dexact, &swiglu, &dswiglu, &total, &scaled})
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
  Both<H> logits(large), again(large);
  Floats statistics(2 * rows);
  for (int64_t row = 0; row < rows; ++row) statistics[2 * row] = 40, statistics[2 * row + 1] = 3;
  const std::vector<int32_t> targets = {1, 0, 256, 3, 7, 8, 9, 10, 11};
  std::vector<int32_t> target = targets;
  target[3] = kIgnored;
  Floats parts[2], best[2];
  Doubles losses[2];
  double loss[2];
  ForBoth<H>([&]<typename N>(N) {
    const int64_t i = Which<N>();
    losses[i].resize(rows), parts[i].resize(3 * rows), best[i].resize(2);
    kernels.CrossEntropyPart(CrossEntropyPartArgs<N>{
        rows, 100, stride, 3, logits.template data<N>(), targets.data(), parts[i].data()});
    kernels.Draw(DrawArgs<N>{.n = vocabulary,
                             .logits = logits.template data<N>() + stride,
                             .temperature = 0.7f,
                             .seed = 3,
                             .best = best[i].data()});
    kernels.CrossEntropyForward(CrossEntropyForwardArgs<N>{
        rows, vocabulary, stride, 3, logits.template data<N>(), target.data(), losses[i].data(),
        &loss[i], logits.template data<N>(), 0.25f});
    kernels.CrossEntropyBackward(
        CrossEntropyBackwardArgs<N>{rows, vocabulary - 2, stride, 0, 2, again.template data<N>(),
                                    target.data(), statistics.data(), 0.25f});
  });
  Add(result, logits);
  Add(result, again);
  result.AddOne(losses[1] == losses[0] ? 1.0f : 0, 1, 0);
  AddSame(result, kernels, parts[1], parts[0]);
  AddSame(result, kernels, best[1], best[0]);
  result.AddOne(static_cast<float>(loss[1] - loss[0]), 0, 0);
}

template <TwoBytes H>
void HalfRows(const CpuKernels& kernels, int64_t channels, Comparison& result) {
  const int64_t tokens = 5;
  const Floats table = Numbers(7 * channels, 2), position = Numbers(tokens * channels, 3);
  const std::vector<int32_t> token = {3, 0, 3, 6, 1, 3, 3, 2, 0, 5};
  const std::vector<int32_t> places = {0, 1, 2, 0, 1, 0, 0, 1, 2, 3};
  const int32_t* place = channels % 2 == 0 ? places.data() : nullptr;
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
                                                     .out = out.template data<N>(),
                                                     .place = place});
    kernels.EmbeddingBackward(EmbeddingBackwardArgs<N>{.batch = 2,
                                                       .tokens = tokens,
                                                       .channels = channels,
                                                       .vocabulary = 7,
                                                       .token = token.data(),
                                                       .dout = dout.template data<N>(),
                                                       .dtable = dtable[i].data(),
                                                       .dposition = dposition[i].data(),
                                                       .dropout = key,
                                                       .place = place});
    const BiasTensor<N> bias = {channels, dout.template data<N>(), dbias[i].data()};
    kernels.BiasGradient(BiasGradientArgs<N>{10, {&bias, 1}, Update::kAdd});
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
  const std::vector<int32_t> positions = {0, 0, 1, 0, 1, 2};
  ForBoth<H>([&]<typename N>(N) {
    kernels.Rope(RopeArgs<N>{2, 3, 2, dim, row_stride, angles.data(), angles.data() + 3 * dim / 2,
                             x.template data<N>(), Turn::kBackward,
                             dim == 34 ? positions.data() : nullptr});
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
  for (const int64_t head_dim : {6, 64, 128}) HalfHeadNorm<H>(kernels, head_dim, result);
  HalfRope<H>(kernels, 34, 2 * 34 + 5, result);
  HalfRope<H>(kernels, 32, 2 * 32 + 8, result);
  return result;
}

#define PP_OF(H, ...)                                             \
  template Comparison HalfNumbers<H>(const CpuKernels& kernels);  \
  template Comparison HalfNorm<H>(const CpuKernels& kernels);     \
  template Comparison HalfElements<H>(const CpuKernels& kernels); \
  template Comparison HalfEnds<H>(const CpuKernels& kernels);
PP_HALVES(PP_OF)

}  // namespace pp::kernels
