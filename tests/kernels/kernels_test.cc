// Every kernel against a plain version in doubles, in every instruction set of this processor, on
// one and on two threads. To add a kernel: a function that runs it and a row of the table in
// kernel_cases.cc.
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/isa.h"
#include "kernels/threads.h"
#include "tests/kernels/kernel_cases.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Counts what this program takes from the heap, libraries included.
namespace {
std::atomic<int64_t> allocations = 0;
}
extern "C" void* __libc_malloc(size_t bytes);
extern "C" void* malloc(size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}
#endif

namespace pp::kernels {
namespace {

TEST_CASE("kernels compute what their headers say") {
  for (const CpuKernels& kernels : SupportedCpuKernels()) {
    for (const Case& test : KernelCases()) {
      INFO(test.name << " on " << kernels.isa);
      SetThreads(1);
      const Comparison one = test.run(kernels);
      CHECK(WorstError(one) <= 1);
      CHECK(SameBits(test.run(kernels).actual, one.actual));  // as a recomputation would be
      SetThreads(2);
      CHECK(SameBits(test.run(kernels).actual, one.actual));
      SetThreads(1);
    }
  }
}

TEST_CASE("random numbers and sums of squares are the same on every processor") {
  for (const CpuKernels& kernels : SupportedCpuKernels()) {
    INFO(kernels.isa);
    const CpuKernels& oldest = SupportedCpuKernels().front();
    CHECK(SameBits(RandomNormal(kernels).actual, RandomNormal(oldest).actual));
    CHECK(SameBits(SumSquares(kernels).actual, SumSquares(oldest).actual));
  }
}

// Known answers of the authors' own implementation (Random123, kat_vectors).
TEST_CASE("philox gives its known answers") {
  uint32_t words[4];
  Philox(0, {0, 0, 0, 0}, words);
  CHECK(words[0] == 0x6627e8d5);
  CHECK(words[3] == 0x9b00dbd8);
  Philox(~uint64_t{0}, {~0u, ~0u, ~0u, ~0u}, words);
  CHECK(words[0] == 0x408f276d);
  CHECK(words[3] == 0x6d5451fd);
}

TEST_CASE("a dropout mask does not depend on how the batch is split") {
  const int64_t batch = 4, elements = 51;
  const Floats x = Numbers(batch * elements, 1);
  Floats whole(x.size()), parts(x.size());
  DropoutKey key = {.seed = 3, .site = 9, .first_sequence = 100, .p = 0.5f};
  cpu::Dropout<float>({{0, batch * elements, elements}, x.data(), whole.data(), key});
  for (int64_t b = 0; b < batch; ++b) {
    key.first_sequence = 100 + static_cast<uint32_t>(b);
    cpu::Dropout<float>(
        {{0, elements, elements}, x.data() + b * elements, parts.data() + b * elements, key});
  }
  CHECK(SameBits(whole, parts));
}

TEST_CASE("dropout drops the fraction it should") {
  const int64_t n = 100000;
  const Floats x(n, 1.0f);
  Floats out(n);
  cpu::Dropout<float>(
      {{0, n, n}, x.data(), out.data(), {.seed = 1, .site = 2, .first_sequence = 3, .p = 0.1f}});
  double dropped = 0;
  for (const float v : out) dropped += v == 0;
  // The standard deviation is sqrt(0.1*0.9/n) = 0.00095; the mask is fixed, so this holds always.
  CHECK(std::abs(dropped / n - 0.1) < 0.003);
}

TEST_CASE("a token is drawn by its probability, however the vocabulary is cut") {
  constexpr int kTokens = 37, kDraws = 20000;
  const Floats logits = Numbers(kTokens, 3);
  for (const CpuKernels& kernels : SupportedCpuKernels()) {
    INFO(kernels.isa);
    for (const float temperature : {1.0f, 0.5f}) {
      std::vector<double> probability(kTokens), times(kTokens);
      double sum = 0;
      for (int v = 0; v < kTokens; ++v)
        sum += probability[v] = std::exp(double{logits[v]} / temperature);
      for (uint32_t number = 0; number < kDraws; ++number) {
        DrawArgs args = {.n = kTokens,
                         .logits = logits.data(),
                         .temperature = temperature,
                         .seed = 5,
                         .number = number};
        float whole[2], part[2], best[2] = {-INFINITY, -1};
        args.best = whole;
        kernels.Draw(args);
        ++times.at(static_cast<int>(whole[1]));
        args.best = part;
        for (const auto& [begin, end] : {std::pair{0, 9}, {9, 9}, {9, 30}, {30, kTokens}}) {
          args.first = begin, args.n = end - begin, args.logits = logits.data() + begin;
          kernels.Draw(args);
          if (part[0] > best[0]) best[0] = part[0], best[1] = part[1];
        }
        if (best[1] != whole[1]) FAIL("draw " << number);
      }
      for (int v = 0; v < kTokens; ++v) {
        const double p = probability[v] / sum, mean = p * kDraws;
        // Five standard deviations; the draws are fixed, so this holds always.
        CHECK(std::abs(times[v] - mean) < 5 * std::sqrt(mean * (1 - p)));
      }
    }
    float best[2];
    DrawArgs likeliest = {.n = kTokens, .logits = logits.data(), .temperature = 0, .best = best};
    kernels.Draw(likeliest);
    CHECK(best[1] == std::max_element(logits.begin(), logits.end()) - logits.begin());
    const Floats bad(kTokens, std::nanf(""));
    likeliest.logits = bad.data();
    kernels.Draw(likeliest);
    CHECK(best[1] == -1);
  }
}

TEST_CASE("a NaN or an infinity in the logits reaches the loss") {
  const float bad[] = {std::nanf(""), INFINITY, -std::nanf("1")};
  for (const CpuKernels& kernels : SupportedCpuKernels()) {
    for (const float value : bad) {
      for (const int64_t at : {0, 31, 99, 100}) {
        Floats logits = Numbers(101, 1);
        logits[at] = value;
        const int32_t target = 5;
        double row = 0, loss = 0;
        kernels.CrossEntropyForward({1, 101, 0, 0, logits.data(), &target, &row, &loss});
        INFO(kernels.isa << ", " << value << " at " << at);
        CHECK_FALSE(std::isfinite(loss));
      }
    }
  }
}

// [m, k] times [k, n]
Floats Product(const CpuKernels& kernels, const Floats& a, const Floats& b, int64_t m, int64_t n,
               int64_t k) {
  Floats c(m * n);
  Scratch scratch(cpu::Matmul::ScratchBytes(MatmulNumbers::kFp32));
  kernels.MatmulRun(
      {.shape = {.m = m, .n = n, .k = k, .lda = k, .ldb = n, .ldc = n},
       .args = {.a = a.data(), .b = b.data(), .c = c.data(), .scratch = scratch.get()}});
  return c;
}

TEST_CASE("a NaN or an infinity in an operand reaches the product, but no other row or column") {
  const int64_t m = 35, n = 40, k = 300;
  const uint32_t bad[] = {0x7fc00000, 0x7fffffff, 0xffffffff, 0x7f800001, 0x7f800000, 0xff800000};
  for (const CpuKernels& kernels : SupportedCpuKernels()) {
    for (const uint32_t bits : bad) {
      for (const bool in_a : {true, false}) {
        Floats a = Numbers(m * k, 1), b = Numbers(k * n, 2);
        const int64_t row = 33, column = 5, x = 290;
        std::memcpy(in_a ? &a[row * k + x] : &b[x * n + column], &bits, sizeof(bits));
        const Floats c = Product(kernels, a, b, m, n, k);
        int64_t wrong = 0;
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            wrong += std::isfinite(c[i * n + j]) == (in_a ? i == row : j == column);
          }
        }
        INFO(kernels.isa << ", bits " << std::hex << bits << (in_a ? " in A" : " in B"));
        CHECK(wrong == 0);
      }
    }
  }
}

// Values whose lower halves matter: 1 + small, of both signs, so that the sums cancel.
TEST_CASE("a product is as precise as fused multiply-adds") {
  const int64_t m = 48, n = 64, k = 1024;
  Floats a = Numbers(m * k, 1), b = Numbers(k * n, 2);
  for (float& x : a) x += std::copysign(1.0f, x);
  for (float& x : b) x += std::copysign(1.0f, x);
  double least = HUGE_VAL;
  for (const CpuKernels& kernels : SupportedCpuKernels()) {
    const Floats c = Product(kernels, a, b, m, n, k);
    double squares = 0;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double want = 0;
        for (int64_t x = 0; x < k; ++x) want += static_cast<double>(a[i * k + x]) * b[x * n + j];
        squares += (c[i * n + j] - want) * (c[i * n + j] - want);
      }
    }
    const double error = std::sqrt(squares / static_cast<double>(m * n));
    INFO(kernels.isa << ": " << error << ", the best so far " << least);
    CHECK(error <= 1.1 * least);
    least = std::min(least, error);
  }
}

TEST_CASE("extreme numbers go through GELU") {
  const Floats x = {-100, -20, 0, 20, 100, 1e20f, std::nanf("")};
  const int64_t n = static_cast<int64_t>(x.size());
  const Floats ones(n, 1.0f);
  Floats y(n), dx(n);
  cpu::GeluForward<float>({n, x.data(), y.data()});
  cpu::GeluBackward<float>({n, x.data(), ones.data(), dx.data()});
  CHECK(std::abs(y[0]) < 1e-30f);
  CHECK(y[2] == 0);
  CHECK(dx[2] == 0.5f);
  CHECK(y[4] == 100);
  CHECK(dx[4] == 1);
  CHECK(y[5] == 1e20f);
  CHECK(std::isnan(y[6]));
  CHECK(std::isnan(dx[6]));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("no kernel takes memory") {
  cpu::Matmul matmul;
  const int id = matmul.Prepare({.m = 64, .n = 96, .k = 64});
  const AttentionShape shape = {1, 64, 1, 32};
  const Floats x = Numbers(64 * 96, 1);
  Floats out(64 * 96), lse(64);
  Doubles losses(64);
  Scratch scratch(std::max(cpu::Matmul::ScratchBytes(MatmulNumbers::kFp32),
                           cpu::AttentionScratchBytes<float>(shape)));
  double loss = 0;
  const int32_t target[64] = {};
  const int64_t before = allocations;
  matmul.Run(id, {.a = x.data(), .b = x.data(), .c = out.data(), .scratch = scratch.get()});
  cpu::AttentionForward<float>({shape, x.data(), out.data(), lse.data(), {}, {}, scratch.get()});
  cpu::CrossEntropyForward<float>(
      {64, 96, 0, 0, x.data(), target, losses.data(), &loss, out.data()});
  cpu::GeluForward<float>({64 * 96, x.data(), out.data()});
  CHECK(allocations == before);
}
#endif

TEST_CASE("a matmul that was prepared has one id") {
  cpu::Matmul matmul;
  const MatmulShape shape = {.m = 2, .n = 3, .k = 4};
  CHECK(matmul.Prepare(shape) == 0);
  CHECK(matmul.Prepare({.m = 2, .n = 3, .k = 5}) == 1);
  CHECK(matmul.Prepare(shape) == 0);
  const Floats a = Numbers(8, 1), b = Numbers(12, 2);
  Floats c(6);
  Scratch scratch(cpu::Matmul::ScratchBytes(MatmulNumbers::kFp32));
  matmul.Run(0, {.a = a.data(), .b = b.data(), .c = c.data(), .scratch = scratch.get()});
  CHECK(c[0] == Approx(a[0] * b[0] + a[1] * b[3] + a[2] * b[6] + a[3] * b[9]));
}

// Large enough for several tasks in each direction.
TEST_CASE("large products have the bits of one thread on any number of threads") {
  const int64_t m = 700, n = 900, k = 520;
  const Floats a = Numbers(m * k, 1), b = Numbers(k * n, 2);
  for (const CpuKernels& kernels : SupportedCpuKernels())
    for (const Operands operands : {Operands::kNN, Operands::kNT, Operands::kTN}) {
      Floats one;
      for (const int threads : {1, 2, 3, 5}) {
        SetThreads(threads);
        Scratch scratch(cpu::Matmul::ScratchBytes(MatmulNumbers::kFp32));
        Floats c(m * n);
        kernels.MatmulRun({.shape = {.m = m,
                                     .n = n,
                                     .k = k,
                                     .operands = operands,
                                     .lda = operands == Operands::kTN ? m : k,
                                     .ldb = operands == Operands::kNT ? k : n,
                                     .ldc = n},
                           .args = {.a = a.data(),
                                    .b = b.data(),
                                    .c = c.data(),
                                    .scratch = scratch.get(),
                                    .helpers = scratch.helpers()},
                           .threads = threads});
        if (threads == 1) one = c;
        INFO(kernels.isa << ", " << threads << " threads, operands " << static_cast<int>(operands));
        CHECK(SameBits(c, one));
      }
      SetThreads(1);
    }
}

TEST_CASE("each thread works once a round, and nothing runs on threads inside") {
  for (const int threads : {1, 2, 5}) {
    SetThreads(threads);
    CHECK(Threads() == threads);
    struct {
      int calls[5] = {}, inside[5] = {};
    } seen;
    for (int round = 0; round < 1000; ++round)
      RunOnThreads(
          1 + round % threads,
          [](void* data, int thread) {
            auto* mine = static_cast<decltype(seen)*>(data);
            ++mine->calls[thread];
            mine->inside[thread] = Threads();
          },
          &seen);
    for (int thread = 0; thread < threads; ++thread) {
      CHECK(seen.calls[thread] == 1000 / threads * (threads - thread));
      CHECK(seen.inside[thread] == 1);
    }
  }
  SetThreads(1);
}

}  // namespace
}  // namespace pp::kernels
