// Kernels that go over elements: activation functions, dropout, the optimizer.
#include <cmath>

#include "tests/kernels/kernel_cases.h"

namespace pp::kernels {

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
      // Relative, except for what u itself loses to rounding: exp(2u) has an error of 2u eps.
      result.AddOne(y[i], want, 4 * kEpsilon * std::abs(want) * (1 + std::abs(u)) + 1e-15);
      result.AddOne(dx[i], dy[i] * slope, 8 * kEpsilon * (1 + std::abs(v)));
    }
  }
  return result;
}

Comparison GeluExact(const CpuKernels& kernels) {
  Comparison result;
  for (const float range : {1.0f, 10.0f}) {
    Floats x = Numbers(1003, 1);
    for (float& v : x) v *= range;
    const int64_t n = static_cast<int64_t>(x.size());
    const Floats dy = Numbers(n, 2);
    Floats y(n), dx(n);
    kernels.GeluForward({n, x.data(), y.data(), GeluForm::kExact});
    kernels.GeluBackward({n, x.data(), dy.data(), dx.data(), GeluForm::kExact});
    for (int64_t i = 0; i < n; ++i) {
      const double v = x[i], distribution = std::erfc(-v / std::sqrt(2.0)) / 2;
      const double density = std::exp(-v * v / 2) / std::sqrt(2 * M_PI);
      // As above, of an exponent of v*v/2.
      result.AddOne(y[i], v * distribution,
                    4 * kEpsilon * std::abs(v * distribution) * (1 + v * v / 2) + 1e-15);
      result.AddOne(dx[i], dy[i] * (distribution + v * density), 8 * kEpsilon * (1 + std::abs(v)));
    }
  }
  return result;
}

// Where the square of x overflows, and where its exponential does.
Comparison GeluFar(const CpuKernels& kernels) {
  const Floats x = {1e20f, -1e20f, 3e38f, -3e38f, 20, -20, 16, -16}, dy(x.size(), 2);
  const int64_t n = static_cast<int64_t>(x.size());
  Comparison result;
  for (const GeluForm form : {GeluForm::kTanh, GeluForm::kExact}) {
    Floats y(n), dx(n);
    kernels.GeluForward({n, x.data(), y.data(), form});
    kernels.GeluBackward({n, x.data(), dy.data(), dx.data(), form});
    for (int64_t i = 0; i < n; ++i) {
      result.AddOne(y[i], x[i] > 0 ? x[i] : 0, 1e-30);
      result.AddOne(dx[i], x[i] > 0 ? 2 : 0, 1e-30);
    }
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
    result.Add(y, want, 400 * 4 * kEpsilon);  // values of up to 400
    result.Add(dx, want_d, 20 * 8 * kEpsilon);
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

// For one tensor, and for so many in one call that a GPU needs several launches.
Comparison AdamW(const CpuKernels& kernels) {
  const int64_t n = 70001;
  const Floats gradient = Numbers(n, 1);
  Floats w = Numbers(n, 2), m = Numbers(n, 3), v = Numbers(n, 4);
  for (float& x : v) x = std::abs(x);
  const Floats w0 = w, m0 = m, v0 = v;
  const float decay = 0.1f;
  const AdamWTensor whole = {n, w.data(), m.data(), v.data(), gradient.data(), decay};
  AdamWArgs args = {.tensors = {&whole, 1},
                    .gradient_scale = 0.5f,
                    .learning_rate = 1e-2f,
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
    want_w[i] = w0[i] - args.learning_rate * (step + decay * w0[i]);
  }
  Comparison result;
  result.Add(w, want_w, 4 * kEpsilon);
  result.Add(m, want_m, 2 * kEpsilon);
  result.Add(v, want_v, 2 * kEpsilon);

  // The scale that Clip has written is equivalent to one in the arguments, and a gradient that is
  // not finite changes nothing.
  const Floats w1 = w, m1 = m, v1 = v;
  Clipped clipped = {.scale = 0.5f, .finite = 0};
  args.clipped = &clipped, args.gradient_scale = 2;
  kernels.AdamW(args);
  const bool unchanged = SameBits(w, w1) && SameBits(m, m1) && SameBits(v, v1);
  clipped.finite = 1;
  w = w0, m = m0, v = v0;
  kernels.AdamW(args);
  const bool same = SameBits(w, w1) && SameBits(m, m1) && SameBits(v, v1);

  w = w0, m = m0, v = v0;
  std::vector<AdamWTensor> parts;
  for (int64_t at = 0; at < n; at += parts.back().n)
    parts.push_back({std::min(n - at, 4 * static_cast<int64_t>(parts.size() % 400)), w.data() + at,
                     m.data() + at, v.data() + at, gradient.data() + at, decay});
  args.tensors = parts;
  kernels.AdamW(args);
  const bool in_parts = SameBits(w, w1) && SameBits(m, m1) && SameBits(v, v1);
  for (const bool right : {unchanged, same, in_parts}) result.AddOne(right ? 1.0f : 0, 1, 0);
  return result;
}

Comparison Elementwise(const CpuKernels& kernels) {
  const int64_t n = 66000;
  const Floats x = Numbers(n, 1), y = Numbers(n, 2);
  Floats filled(n), sum = y, scaled = x;
  kernels.Fill({n, filled.data(), 1.5f});
  kernels.Add({n, x.data(), sum.data()});
  kernels.Scale({n - 1, scaled.data(), 0.7f});
  Doubles want_sum(n), want_scaled(n);
  for (int64_t i = 0; i < n; ++i) {
    want_sum[i] = double(x[i]) + y[i];
    want_scaled[i] = i < n - 1 ? double(x[i]) * 0.7f : x[i];  // nothing behind the last one
  }
  Comparison result;
  result.Add(filled, Doubles(n, 1.5), 0);
  result.Add(sum, want_sum, kEpsilon);
  result.Add(scaled, want_scaled, kEpsilon);
  return result;
}

}  // namespace pp::kernels
