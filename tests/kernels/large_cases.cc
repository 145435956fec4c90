// Cases that are larger than what a block of a GPU's threads takes in one go, or where values are
// not finite.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/kernel_cases.h"

namespace pp::kernels {

Comparison Clip(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t blocks : {0, 1, 5, 3000})
    for (const double most : {0.0, 0.5, 1e6}) {
      const Floats x = Numbers(blocks, 1);
      Doubles norm(x.begin(), x.end());
      double sum = 0;
      for (double& block : norm) sum += block *= block;
      norm.push_back(-1);
      Clipped clipped = {-1, -1, -1, -1};
      kernels.Clip({.blocks = blocks, .norm = norm.data(), .max_norm = most, .clipped = &clipped});
      const double want = std::sqrt(sum),
                   scale = most > 0 && want > most ? most / (want + 1e-6) : 1;
      // Doubles: the only error is a float's.
      result.Add({static_cast<float>(norm[blocks]), clipped.scale, clipped.finite},
                 {want, scale, 1}, 2 * kEpsilon * std::max(1.0, want));
      result.Add({clipped.correction1, clipped.correction2}, {0, 0}, 0);  // AdamW has its own
    }
  for (const double bad : {HUGE_VAL, std::nan("")})
    for (const int64_t at : {0, 1234}) {
      Doubles norm(1501, 1.0);
      norm[at] = bad;
      Clipped clipped = {-1, -1, -1, -1};
      kernels.Clip({.blocks = 1500, .norm = norm.data(), .max_norm = 1, .clipped = &clipped});
      result.Add({clipped.finite, std::isfinite(norm.back()) ? 1.0f : 0}, {0, 0}, 0);
    }
  return result;
}

// Steps of which some overflow: what STEP, the next backward and AdamW get from each, queried by
// two stages of a device.
Comparison ScaledLoss(const CpuKernels& kernels) {
  Comparison result;
  LossScale scaling = {.scale = 1024};
  const bool finite[] = {false, true, true, true, false, true};
  const double scale[] = {512, 512, 512, 1024, 512, 512}, updates[] = {0, 1, 2, 3, 3, 4};
  const Floats start = Numbers(1, 1);
  Floats weight = start, m = {0}, v = {0};
  double w = start[0], first = 0, second = 0;  // by the plain formula
  for (int64_t step = 1; step <= 6; ++step) {
    const double used = scaling.scale;
    for (int stage = 0; stage < 2; ++stage) {
      Doubles norm = {9 * used * used, finite[step - 1] ? 16 * used * used : HUGE_VAL, 0};
      Clipped clipped;
      kernels.Clip({.blocks = 2,
                    .norm = norm.data(),
                    .max_norm = 1,
                    .clipped = &clipped,
                    .scaling = &scaling,
                    .step = step,
                    .every = 3,
                    .update = step,
                    .beta1 = 0.9,
                    .beta2 = 0.95});
      result.Add({scaling.scale, scaling.used, clipped.finite},
                 {scale[step - 1], used, finite[step - 1] ? 1.0 : 0.0}, 0);
      result.AddOne(static_cast<float>(scaling.skipped), step - updates[step - 1], 0);
      if (!finite[step - 1]) continue;
      result.Add({static_cast<float>(norm[2]), static_cast<float>(clipped.scale * used)},
                 {5, 1 / (5 + 1e-6)}, 8 * kEpsilon);
      if (stage > 0) continue;
      const Floats gradient = {static_cast<float>(0.5 * used)};
      const AdamWTensor tensor = {1, weight.data(), m.data(), v.data(), gradient.data()};
      kernels.AdamW(
          {.tensors = {&tensor, 1}, .clipped = &clipped, .learning_rate = 0.1f, .beta2 = 0.95f});
      const double g = 0.5 / (5 + 1e-6), n = updates[step - 1];
      first = 0.9 * first + 0.1 * g, second = 0.95 * second + 0.05 * g * g;
      w -= 0.1 * first / (1 - std::pow(0.9, n)) / std::sqrt(second / (1 - std::pow(0.95, n)));
    }
    // Relative to a change of 0.1: an epsilon of 1e-8 and some roundings of values of order 1.
    result.Add(weight, {w}, 64 * kEpsilon);
  }
  // The origin of the gradient.
  const Floats logits(4), statistics = {0, std::log(4.0f)};
  const int32_t target = 2;
  Floats plain(4), scaled(4), part(4);
  double loss = 0;
  scaling.scale = 8;
  CrossEntropyForwardArgs<float> args = {.rows = 1,
                                         .vocabulary = 4,
                                         .logits = logits.data(),
                                         .target = &target,
                                         .losses = &loss,
                                         .dlogits = plain.data(),
                                         .scale = 0.5f};
  kernels.CrossEntropyForward(args);
  args.dlogits = scaled.data(), args.scaling = &scaling;
  kernels.CrossEntropyForward(args);
  kernels.CrossEntropyBackward({.rows = 1,
                                .vocabulary = 4,
                                .logits = part.data(),
                                .target = &target,
                                .statistics = statistics.data(),
                                .scale = 0.5f,
                                .scaling = &scaling});
  for (int i = 0; i < 4; ++i) {
    result.AddOne(scaled[i], 8.0 * plain[i], 0);
    result.AddOne(part[i], scaled[i], 8 * kEpsilon);
  }
  return result;
}

// With a vocabulary that begins in the middle of four words; of equal scores the first one wins.
Comparison Draw(const CpuKernels& kernels) {
  Comparison result;
  const int64_t n = 5000, first = 6;
  const auto draw = [&](const Floats& logits, float temperature) {
    Floats best = {0, 0};
    kernels.Draw(DrawArgs<float>{.n = static_cast<int64_t>(logits.size()),
                                 .first = first,
                                 .logits = logits.data(),
                                 .temperature = temperature,
                                 .seed = 11,
                                 .number = 4,
                                 .best = best.data()});
    return best;
  };
  const Floats numbers = Numbers(n, 1);
  for (const float temperature : {0.0f, 0.7f, 1.5f}) {
    double most = -HUGE_VAL, token = -1;
    for (int64_t v = 0; v < n; ++v) {
      const auto at = static_cast<uint32_t>(first + v);
      uint32_t words[4];
      Philox(11, {at / 4, 0, 4, 0xfffffffe}, words);
      const double u = (words[at % 4] + 0.5) * 0x1p-32;
      const double score =
          temperature > 0 ? numbers[v] / double{temperature} - std::log(-std::log(u)) : numbers[v];
      if (score > most) most = score, token = at;
    }
    const Floats best = draw(numbers, temperature);
    result.AddOne(best[0], most, 2 * kEpsilon * std::abs(most));
    result.AddOne(best[1], token, 0);
  }
  Floats flat(n, 1);
  flat[0] = flat[17] = std::nanf("");
  result.Add(draw(flat, 0), {1, 7}, 0);
  flat[2050] = flat[2041] = 2;  // the first one in a later thread
  result.Add(draw(flat, 0), {2, 2047}, 0);
  for (const float none : {std::nanf(""), -HUGE_VALF})
    result.Add({draw(Floats(n, none), 1)[1], draw({}, 1)[1]}, {-1, -1}, 0);
  return result;
}

// More parts than usual; the output is one of them, or both outputs are.
Comparison SumParts(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t count : {1, 16, 17, 40})
    for (const int64_t n : {5, 1024, 3001}) {
      const Floats numbers = Numbers(count * n, 1);
      std::vector<Floats> parts;
      std::vector<const float*> at;
      Doubles want(n);
      for (int64_t p = 0; p < count; ++p) {
        parts.emplace_back(numbers.begin() + p * n, numbers.begin() + (p + 1) * n);
        for (int64_t i = 0; i < n; ++i) want[i] += parts.back()[i];
      }
      for (const Floats& part : parts) at.push_back(part.data());
      Floats &out = parts.back(), &also = parts[count / 2];
      kernels.SumParts(SumPartsArgs<float>{.n = n,
                                           .count = count,
                                           .parts = at.data(),
                                           .out = out.data(),
                                           .also = &also != &out ? also.data() : nullptr});
      result.Add(out, want, kEpsilon * static_cast<double>(count));
      result.Add(also, want, kEpsilon * static_cast<double>(count));
    }
  return result;
}

// Few tokens and positions of documents that occur in many rows, or many channels; the lists begin
// anywhere.
Comparison EmbeddingLarge(const CpuKernels& kernels) {
  struct Size {
    int64_t batch, tokens, channels, skip;
  };
  Comparison result;
  for (const Size& s : {Size{2, 520, 12, 0}, Size{1, 1050, 3, 1}, Size{2, 5, 2064, 0}})
    for (const DropoutKey& key : kDropouts) {
      const int64_t rows = s.batch * s.tokens, vocabulary = 40;
      const Floats random = Numbers(rows + s.skip, 7), dout = Numbers(rows * s.channels, 3);
      std::vector<int32_t> token;
      for (const float x : random) token.push_back(static_cast<int32_t>(std::abs(x) * 38));
      std::fill(token.begin() + std::min<int64_t>(1030, rows), token.end(), 41);  // new, and often
      Floats dtable = Numbers(vocabulary * s.channels, 4), dposition(s.tokens * s.channels);
      Doubles want(dtable.begin(), dtable.end()), want_position(dposition.size());
      std::vector<int32_t> place(rows + s.skip);
      for (int64_t row = 0; row < rows; ++row)
        place[row + s.skip] = static_cast<int32_t>(row % s.tokens % 90 % 31);
      kernels.EmbeddingBackward({.batch = s.batch,
                                 .tokens = s.tokens,
                                 .channels = s.channels,
                                 .first = 3,
                                 .vocabulary = vocabulary,
                                 .token = token.data() + s.skip,
                                 .dout = dout.data(),
                                 .dtable = dtable.data(),
                                 .dposition = dposition.data(),
                                 .dropout = key,
                                 .place = place.data() + s.skip});
      for (int64_t i = 0; i < rows * s.channels; ++i) {
        const int64_t row = i / s.channels, c = i % s.channels, at = i % (s.tokens * s.channels);
        const int64_t here = token[row + s.skip] - 3;
        const double gradient = Mask(key, row / s.tokens, at) * dout[i];
        if (0 <= here && here < vocabulary) want[here * s.channels + c] += gradient;
        want_position[place[row + s.skip] * s.channels + c] += gradient;
      }
      // Up to some fifty rows meet in one.
      result.Add(dtable, want, 50 * kEpsilon);
      result.Add(dposition, want_position, 50 * kEpsilon);
    }
  return result;
}

namespace {

// The logits become their gradient.
double LossOf(const CpuKernels& kernels, int64_t rows, int64_t vocabulary, int64_t stride,
              const std::vector<int32_t>& target, Floats* logits) {
  Doubles losses(rows);
  double loss = 0;
  kernels.CrossEntropyForward({.rows = rows,
                               .vocabulary = vocabulary,
                               .row_stride = stride,
                               .logits = logits->data(),
                               .target = target.data(),
                               .losses = losses.data(),
                               .loss = &loss,
                               .dlogits = logits->data()});
  return loss;
}

}  // namespace

// Larger ones come later in every row, by far; what is behind a row stays as it is.
Comparison CrossEntropyLarge(const CpuKernels& kernels) {
  Comparison result;
  const int64_t rows = 3, vocabulary = 9001;
  for (const int64_t stride : {9008, 9003}) {
    Floats logits = Numbers(rows * stride, 1);
    for (int64_t i = 0; i < rows * stride; ++i)
      logits[i] = i % stride >= vocabulary ? 7 : 3 * logits[i] + float(i % stride / 512);
    const std::vector<int32_t> target = {0, 4500, 9000};
    Floats got = logits;
    const double loss = LossOf(kernels, rows, vocabulary, stride, target, &got);
    Doubles want(logits.begin(), logits.end());
    double want_loss = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const float* x = logits.data() + row * stride;
      double sum = 0;
      for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(double{x[v]});
      for (int64_t v = 0; v < vocabulary; ++v)
        want[row * stride + v] = std::exp(double{x[v]}) / sum - (v == target[row] ? 1 : 0);
      want_loss += std::log(sum) - x[target[row]];
    }
    result.Add(got, want, 20 * kEpsilon);
    result.AddOne(static_cast<float>(loss), want_loss, 20 * kEpsilon * rows);
  }
  return result;
}

// A logit of minus infinity contributes nothing, wherever it is, and neither do many of them; one
// that is plus infinity or NaN, or a target of minus infinity, is noticed.
Comparison CrossEntropyInfinite(const CpuKernels& kernels) {
  Comparison result;
  const int64_t vocabulary = 5000, finite = 4990;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Floats logits(vocabulary, -kInfinity);
  for (int64_t v = finite; v < vocabulary; ++v) logits[v] = 1;
  Floats got = logits;
  const double loss = LossOf(kernels, 1, vocabulary, vocabulary, {finite}, &got);
  Doubles want(vocabulary);
  for (int64_t v = finite; v < vocabulary; ++v) want[v] = 0.1 - (v == finite ? 1 : 0);
  result.Add(got, want, 4 * kEpsilon);
  result.AddOne(static_cast<float>(loss), std::log(10.0), 4 * kEpsilon);
  for (const float bad : {kInfinity, std::nanf("")})
    for (const int64_t at : {int64_t{0}, finite, vocabulary - 1}) {
      got = logits, got[at] = bad;
      const double bad_loss = LossOf(kernels, 1, vocabulary, vocabulary, {finite}, &got);
      result.AddOne(std::isfinite(bad_loss) ? 1.0f : 0, 0, 0);
    }
  got = logits;
  const double without = LossOf(kernels, 1, vocabulary, vocabulary, {0}, &got);
  result.AddOne(std::isfinite(without) ? 1.0f : 0, 0, 0);
  got.assign(vocabulary, -kInfinity);
  const double none = LossOf(kernels, 1, vocabulary, vocabulary, {0}, &got);
  result.AddOne(std::isfinite(none) ? 1.0f : 0, 0, 0);
  return result;
}

}  // namespace pp::kernels
