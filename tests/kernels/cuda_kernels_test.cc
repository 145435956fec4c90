// Every kernel for a GPU against the same plain versions in doubles as the CPU's (kernels_test.cc),
// from its own source, on an emulation of the block model, in several orders of warps and blocks.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/block/block.h"
#include "tests/kernels/cuda_table.h"
#include "tests/kernels/first_key_lists.h"
#include "tests/kernels/kernel_cases.h"

namespace pp::kernels {

void FinishKernel() {}  // it is over when it returns

namespace {

// Those of `takes`; with other seeds they have the same bits. Products are a library's on a GPU
// (gpu_kernels.cc); here they would be the CPU's.
void Check(const std::function<bool(std::string_view name)>& takes,
           std::initializer_list<uint32_t> seeds) {
  const CpuKernels kernels = CudaKernels();
  for (const auto& cases : {KernelCases(), CudaCases()})
    for (const Case& test : cases) {
      if (!takes(test.name)) continue;
      INFO(test.name);
      cuda::emulation::SetSeed(1);
      const Comparison one = test.run(kernels);
      CHECK(WorstError(one) <= 1);
      for (uint32_t seed : seeds) {
        cuda::emulation::SetSeed(seed);
        CHECK(SameBits(test.run(kernels).actual, one.actual));
      }
    }
}

TEST_CASE("a GPU's kernels compute what their headers say") {
  Check([](std::string_view name) { return name.find("matmul") == name.npos; }, {2, 3});
}

TEST_CASE("attention without products of warpgroups") {
  struct Without {
    Without() { cuda::emulation::has_warpgroups = false; }
    ~Without() { cuda::emulation::has_warpgroups = true; }
  } without;
  Check([](std::string_view name) { return name.find("float16: attention") != name.npos; }, {});
}

// What an attention's forward and backward copy to shared memory.
template <typename N>
int64_t CopiedBytes(const AttentionShape& s, const FirstKeyList& first) {
  const CpuKernels kernels = CudaKernels();
  const int64_t rows = s.tokens * s.heads, c = rows * s.head_dim;
  const std::vector<N> qkv(3 * c), dout(c);
  std::vector<N> out(c), dqkv(3 * c);
  Floats lse(rows);
  const int64_t before = cuda::emulation::copied_bytes;
  kernels.AttentionForward(AttentionForwardArgs<N>{.shape = s,
                                                   .qkv = qkv.data(),
                                                   .out = out.data(),
                                                   .lse = lse.data(),
                                                   .first_keys = first.keys()});
  kernels.AttentionBackward(AttentionBackwardArgs<N>{.shape = s,
                                                     .qkv = qkv.data(),
                                                     .out = out.data(),
                                                     .lse = lse.data(),
                                                     .dout = dout.data(),
                                                     .dqkv = dqkv.data(),
                                                     .first_keys = first.keys()});
  return cuda::emulation::copied_bytes - before;
}

// All blocks and tiles have sizes that divide 384. So with a window each 384 further tokens copy as
// much as the ones before; without it, more.
template <typename N>
void CheckLinear(int64_t dim) {
  INFO("heads of " << dim << ", elements of " << sizeof(N) << " bytes");
  const auto copied = [dim](int64_t parts, int64_t window) {
    const int64_t tokens = 384 * parts;
    return CopiedBytes<N>({1, tokens, 1, dim}, WindowOf(tokens, window));
  };
  CHECK(copied(3, 100) - copied(2, 100) == copied(2, 100) - copied(1, 100));
  CHECK(copied(2, 100) - copied(1, 100) < copied(2, 768) - copied(1, 384));
}

TEST_CASE("tiles that no pair needs are not copied") {
  for (const bool warpgroups : {true, false}) {
    cuda::emulation::has_warpgroups = warpgroups;
    for (const int64_t dim : {64, 128}) CheckLinear<BFloat16>(dim);
  }
  cuda::emulation::has_warpgroups = true;
  CheckLinear<BFloat16>(80);
  CheckLinear<float>(8);
}

// Of each matrix a tile of 64 rows for each warpgroup of a block, and those that the block goes
// through: `forward`, `keys` and `queries` warpgroups in each kernel's blocks.
void CheckShared(int64_t dim, int forward, int keys, int queries) {
  constexpr int kTiles = 7;  // the last block has fewer
  const auto of_others = [](int warpgroups) {
    int tiles = 0;
    for (int last = kTiles; last > 0; last -= warpgroups) tiles += last;
    return tiles;
  };
  const int64_t tiles =
      5 * kTiles + 2 * (of_others(forward) + of_others(keys) + of_others(queries));
  const int64_t statistics = of_others(keys) * 64 * 2 * sizeof(float);
  CHECK(CopiedBytes<BFloat16>({1, kTiles * 64, 1, dim}, {}) == tiles * 64 * dim * 2 + statistics);
}

TEST_CASE("the warpgroups of a block copy a tile once") {
  CheckShared(64, 2, 3, 2);
  CheckShared(128, 3, 2, 3);
}

// If they meet where blocks do: of keys, counted from the first one, and of queries, from the last.
void CheckApart(int64_t dim, int32_t first, int64_t second) {
  const auto copied = [dim](int64_t tokens, const FirstKeyList& list) {
    return CopiedBytes<BFloat16>({1, tokens, 1, dim}, list);
  };
  CHECK(copied(first + second, DocumentsAt(first + second, {0, first})) ==
        copied(first, {}) + copied(second, {}));
}

TEST_CASE("documents are copied as if each were alone") {
  CheckApart(64, 3 * 64, 4 * 64);
  CheckApart(128, 2 * 64, 3 * 64);
}

// The same values at an address that 16 divides, and at another one.
class Moved {
 public:
  explicit Moved(Floats x) : size_(x.size()), at_(std::move(x)) {
    at_.insert(at_.begin(), 1, 0);
    at_.insert(at_.end(), 4, 0);
    std::copy_n(at_.begin() + 1, size_, at_.begin() + 4);
  }
  float* aligned() { return at_.data() + 4; }
  float* moved() {
    std::copy_n(at_.begin() + 4, size_, at_.begin() + 1);
    return at_.data() + 1;
  }

 private:
  size_t size_;
  Floats at_;
};

// What a kernel writes from x, at either address.
template <typename Run>
void CheckSameBits(const Floats& x, int64_t size, const Run& run) {
  Floats one(size), other(size);
  run(Moved(x).aligned(), one.data());
  run(Moved(x).moved(), other.data());
  CHECK(SameBits(one, other));
}

TEST_CASE("sums have the same bits wherever a tensor lies") {
  const CpuKernels kernels = CudaKernels();
  const int64_t rows = 9, columns = 5000;
  const Floats x = Numbers(rows * columns, 1);
  const std::vector<int32_t> target(rows, 4321);
  CheckSameBits(x, columns, [&](float* at, float* out) {
    const BiasTensor<float> bias = {columns, at, out};
    kernels.BiasGradient(BiasGradientArgs<float>{rows, {&bias, 1}});
  });
  CheckSameBits(x, 2, [&](float* at, float* out) {
    double partial = 0;
    const SumSquaresTensor tensor = {rows * columns, at, &partial};
    kernels.SumSquares({{&tensor, 1}});
    std::memcpy(out, &partial, sizeof(partial));
  });
  CheckSameBits(x, rows * columns, [&](float* at, float* out) {
    double loss = 0;
    Doubles losses(rows);
    kernels.CrossEntropyForward(
        {rows, columns, columns, 0, at, target.data(), losses.data(), &loss, at});
    std::copy_n(at, rows * columns, out);
  });
}

// A GPU's with less shared memory.
class LessShared {
 public:
  explicit LessShared(int64_t bytes) { cuda::emulation::most_shared = bytes; }
  ~LessShared() { cuda::emulation::most_shared = before_; }
  LessShared(const LessShared&) = delete;

 private:
  const int64_t before_ = cuda::emulation::most_shared;
};

// What the forward of cross-entropy makes of rows that end in a part of a group and some padding,
// one of them ignored; a thread has eleven groups, more than it copies ahead. The first number:
// bytes that are copied to shared memory.
template <typename N>
Floats LossAndGradients(int64_t shared) {
  const LessShared less(shared);
  const int64_t rows = 3, vocabulary = 45001, stride = 45008;
  const std::vector<int32_t> target = {0, kIgnored, 45000};
  std::vector<N> x;
  for (const float number : Numbers(rows * stride, 1)) x.push_back(cuda::FromFloat<N>(4 * number));
  Doubles losses(rows);
  const int64_t before = cuda::emulation::copied_bytes;
  CudaKernels().CrossEntropyForward(CrossEntropyForwardArgs<N>{.rows = rows,
                                                               .vocabulary = vocabulary,
                                                               .row_stride = stride,
                                                               .padding = 5,
                                                               .logits = x.data(),
                                                               .target = target.data(),
                                                               .losses = losses.data(),
                                                               .dlogits = x.data(),
                                                               .scale = 0.25f});
  Floats results = {static_cast<float>(cuda::emulation::copied_bytes - before)};
  for (const N gradient : x) results.push_back(cuda::ToFloat(gradient));
  results.insert(results.end(), losses.begin(), losses.end());
  return results;
}

TEMPLATE_TEST_CASE("a row that fits in shared memory is read once, and has the same bits", "",
                   float, BFloat16, Float16) {
  using N = TestType;
  const int64_t row = 45008 * sizeof(N), more = 144;  // and what joins the threads' results
  Floats held = LossAndGradients<N>(row + more), again = LossAndGradients<N>(row + more - 1);
  CHECK(held[0] == 2 * 45001 * sizeof(N));  // of an ignored row nothing
  CHECK(again[0] == 0);
  again[0] = held[0];
  CHECK(SameBits(held, again));
}

// Values go round: thread i gets that of thread i + 1.
enum class Barrier { kNo, kYes };
template <Barrier kBarrier>
void PassOn(const float* in, float* out) {
  float* shared = &cuda::Shared<float>();
  shared[cuda::Thread()] = in[cuda::Thread()];
  if (kBarrier == Barrier::kYes) cuda::SyncBlock();
  out[cuda::Thread()] = shared[(cuda::Thread() + 1) % cuda::Threads()];
}

template <Barrier kBarrier>
int WrongNumbers(uint32_t seed) {
  constexpr int kThreads = 128;
  Floats in = Numbers(kThreads, 1), out(kThreads);
  cuda::emulation::SetSeed(seed);
  cuda::Launch<PassOn<kBarrier>>({.threads = kThreads, .shared = kThreads * sizeof(float)}, nullptr,
                                 static_cast<const float*>(in.data()), out.data());
  int wrong = 0;
  for (int i = 0; i < kThreads; ++i) wrong += out[i] != in[(i + 1) % kThreads] ? 1 : 0;
  return wrong;
}

TEST_CASE("a missing barrier is found") {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    CHECK(WrongNumbers<Barrier::kYes>(seed) == 0);
    CHECK(WrongNumbers<Barrier::kNo>(seed) > 0);
  }
}

// Lanes of a warp get the value of one that is not after them.
template <Barrier kBarrier>
void TakeEarlier(float* out) {
  float* shared = &cuda::Shared<float>();
  shared[cuda::Lane()] = 1;
  if (kBarrier == Barrier::kYes) cuda::SyncWarp();
  out[cuda::Lane()] = shared[cuda::Lane() / 2];
}

template <Barrier kBarrier>
bool AllTaken() {
  Floats out(cuda::kWarp);
  bool all = true;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    cuda::emulation::SetSeed(seed);
    cuda::Launch<TakeEarlier<kBarrier>>(
        {.threads = cuda::kWarp, .shared = cuda::kWarp * sizeof(float)}, nullptr, out.data());
    all = all && SameBits(out, Floats(cuda::kWarp, 1));
  }
  return all;
}

TEST_CASE("a missing barrier of a warp is found in some order of its lanes") {
  CHECK(AllTaken<Barrier::kYes>());
  CHECK(!AllTaken<Barrier::kNo>());
}

void EndsEarly() {
  if (cuda::Thread() >= 32) cuda::SyncBlock();
}
void HalfAWarp() {
  if (cuda::Lane() < 16) cuda::SyncWarp();
}
void DifferentInstructions() {
  if (cuda::Lane() < 16) return cuda::SyncWarp();
  cuda::ShuffleXor(1, 1);
}

void WritesFar() { (&cuda::Shared<char>())[100] = 0; }

TEST_CASE("more shared memory than there is is found") {
  using Catch::Contains;
  CHECK_NOTHROW(cuda::Launch<WritesFar>({.threads = 32, .shared = 101}, nullptr));
  CHECK_THROWS_WITH(cuda::Launch<WritesFar>({.threads = 32, .shared = 100}, nullptr),
                    Contains("behind its shared memory"));
  CHECK_THROWS_WITH(cuda::Launch<WritesFar>({.threads = 32, .shared = 228 * 1024}, nullptr),
                    Contains("bytes of shared memory"));
}

TEST_CASE("a barrier that not all threads come to is found") {
  using Catch::Contains;
  CHECK_THROWS_WITH(cuda::Launch<EndsEarly>({.threads = 64}, nullptr),
                    Contains("ends where others"));
  CHECK_THROWS_WITH(cuda::Launch<HalfAWarp>({.threads = 32}, nullptr), Contains("lanes of a warp"));
  CHECK_THROWS_WITH(cuda::Launch<DifferentInstructions>({.threads = 32}, nullptr),
                    Contains("lanes of a warp"));
}

}  // namespace
}  // namespace pp::kernels
