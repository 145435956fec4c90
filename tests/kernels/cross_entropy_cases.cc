// Cross-entropy against doubles.
#include <cmath>

#include "tests/kernels/kernel_cases.h"

namespace pp::kernels {

Comparison CrossEntropy(const CpuKernels& kernels) {
  Comparison result;
  const int64_t vocabularies[] = {1, 15, 257, 1000};
  for (int i = 0; i < 8; ++i) {
    const int64_t vocabulary = vocabularies[i / 2], rows = 9, stride = vocabulary + 3;
    const int64_t padding = i % 2 == 0 ? 0 : 2;
    const float scale = 0.25f, offset = i % 2 == 0 ? 0 : 1000;
    Floats logits = Numbers(rows * stride, 1);
    for (float& x : logits) x = x * 10 + offset;
    std::vector<int32_t> target(rows);
    for (int64_t r = 0; r < rows; ++r) target[r] = static_cast<int32_t>(r * 37 % vocabulary);
    Doubles want(logits.begin(), logits.end()), losses(rows);
    Floats elsewhere = logits;
    double loss = 0, only_loss = 0, want_loss = 0;
    CrossEntropyForwardArgs<float> args = {.rows = rows,
                                           .vocabulary = vocabulary,
                                           .row_stride = stride,
                                           .padding = padding,
                                           .logits = logits.data(),
                                           .target = target.data(),
                                           .losses = losses.data(),
                                           .loss = &only_loss,
                                           .scale = scale};
    kernels.CrossEntropyForward(args);
    result.Add(logits, want, 0);
    args.dlogits = elsewhere.data();
    kernels.CrossEntropyForward(args);
    result.Add(logits, want, 0);
    args.loss = &loss, args.dlogits = logits.data();
    kernels.CrossEntropyForward(args);
    result.AddOne(SameBits(elsewhere, logits) && loss == only_loss ? 1.0f : 0, 1, 0);
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(want[r * stride + v] -= offset);
      want_loss += std::log(sum) - want[r * stride + target[r]];
      for (int64_t v = 0; v < vocabulary; ++v) {
        double& x = want[r * stride + v];
        x = (std::exp(x) / sum - (v == target[r])) * scale;
      }
      for (int64_t v = 0; v < padding; ++v) want[r * stride + vocabulary + v] = 0;
    }
    // exp(x) has a relative error of eps times |x|, here up to 20 below the largest; what is added
    // to all logits makes no difference.
    result.Add(logits, want, 20 * kEpsilon * scale);
    result.AddOne(static_cast<float>(loss), want_loss, 20 * kEpsilon * rows);
  }
  return result;
}

// Rows without a target have no loss and no gradient, even where a logit is NaN, and do not change
// the bits of the other rows.
Comparison CrossEntropyIgnored(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t vocabulary : {1, 257}) {
    const int64_t rows = 7, stride = vocabulary + 3;
    const Floats logits = Numbers(rows * stride, 1);
    const std::vector<int32_t> all(rows, static_cast<int32_t>(vocabulary - 1));
    auto run = [&](const std::vector<int32_t>& target, Floats* x, Doubles* losses, double* loss) {
      kernels.CrossEntropyForward({.rows = rows,
                                   .vocabulary = vocabulary,
                                   .row_stride = stride,
                                   .padding = 1,
                                   .logits = x->data(),
                                   .target = target.data(),
                                   .losses = losses->data(),
                                   .loss = loss,
                                   .dlogits = x->data(),
                                   .scale = 0.25f});
    };
    Floats full = logits, got = logits;
    Doubles full_losses(rows), losses(rows);
    double full_loss = 0, loss = 0, want_loss = 0;
    run(all, &full, &full_losses, &full_loss);
    std::vector<int32_t> some = all;
    for (const int64_t row : {0, 3, 6}) {
      some[row] = kIgnored;
      got[row * stride] = std::nanf("");
    }
    run(some, &got, &losses, &loss);
    Doubles want(full.begin(), full.end());
    for (int64_t row = 0; row < rows; ++row) {
      if (some[row] == kIgnored) {
        std::fill_n(want.begin() + row * stride, vocabulary, 0.0);
        full_losses[row] = 0;
      } else {
        want_loss += full_losses[row];
      }
    }
    result.Add(got, want, 0);
    result.AddOne(losses == full_losses && loss == want_loss ? 1.0f : 0.0f, 1, 0);
    std::vector<int32_t> none(rows, kIgnored);
    run(none, &got, &losses, &loss);
    result.AddOne(static_cast<float>(loss), 0, 0);
  }
  return result;
}

// In parts of 100, 0 and 60 tokens, the last with 3 columns of padding: loss and gradients equal
// those of the whole vocabulary.
Comparison CrossEntropyInParts(const CpuKernels& kernels) {
  Comparison result;
  const int64_t rows = 9, vocabulary = 160, padding = 3;
  const float scale = 0.25f;
  for (const float offset : {0.0f, 1000.0f}) {
    Floats logits = Numbers(rows * vocabulary, 1), statistics(2 * rows), all(3 * 3 * rows);
    for (float& x : logits) x = x * 10 + offset;
    std::vector<int32_t> target(rows);
    for (int64_t r = 0; r < rows; ++r) target[r] = static_cast<int32_t>(r * 37 % vocabulary);
    target[4] = kIgnored;
    Floats whole = logits;
    Doubles losses(rows);
    double loss = 0, want_loss = 0;
    kernels.CrossEntropyForward({.rows = rows,
                                 .vocabulary = vocabulary,
                                 .logits = whole.data(),
                                 .target = target.data(),
                                 .losses = losses.data(),
                                 .loss = &want_loss,
                                 .dlogits = whole.data(),
                                 .scale = scale});
    struct Part {
      int64_t first, count, padding;
      Floats logits;
    } parts[] = {{0, 100, 0, {}}, {100, 0, 0, {}}, {100, 60, padding, {}}};
    for (int p = 0; p < 3; ++p) {
      Part& part = parts[p];
      const int64_t stride = part.count + part.padding;
      part.logits.assign(rows * stride + 1, std::nanf(""));  // of what is padding
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t v = 0; v < part.count; ++v)
          part.logits[r * stride + v] = logits[r * vocabulary + part.first + v];
      kernels.CrossEntropyPart({.rows = rows,
                                .vocabulary = part.count,
                                .row_stride = stride,
                                .first = part.first,
                                .logits = part.logits.data(),
                                .target = target.data(),
                                .part = all.data() + p * 3 * rows});
    }
    kernels.CrossEntropyJoin({.rows = rows,
                              .parts = 3,
                              .all = all.data(),
                              .target = target.data(),
                              .statistics = statistics.data(),
                              .loss = &loss});
    result.AddOne(static_cast<float>(loss), want_loss, 20 * kEpsilon * rows);
    for (Part& part : parts) {
      const int64_t stride = part.count + part.padding;
      kernels.CrossEntropyBackward({.rows = rows,
                                    .vocabulary = part.count,
                                    .row_stride = stride,
                                    .first = part.first,
                                    .padding = part.padding,
                                    .logits = part.logits.data(),
                                    .target = target.data(),
                                    .statistics = statistics.data(),
                                    .scale = scale});
      Doubles want(rows * stride);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t v = 0; v < part.count; ++v)
          want[r * stride + v] = whole[r * vocabulary + part.first + v];
      part.logits.resize(rows * stride);
      result.Add(part.logits, want, 8 * kEpsilon * scale);
    }
  }
  return result;
}

}  // namespace pp::kernels
