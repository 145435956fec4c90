// Fragments of matrices as lanes hold them, and copies to shared memory (kernels/block/mma.h), in
// the emulation: right ones give a plain product, and each planted fault is found.
#include "kernels/block/mma.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

namespace pp::kernels {
namespace {

using cuda::CopyAsync;
using cuda::Lane;
using cuda::Thread;

enum class Fault {
  kNone,
  kRowsSwapped,    // rows 0-7 and 8-15 of A
  kLanesRotated,   // the four groups of eight lanes that give addresses of A
  kColumnsMixed,   // B's second depths before its first
  kNotTransposed,  // B as it lies in memory
  kNoCommit,
  kNoWait,
  kNoBarrier,
};

constexpr int kDepth = 32, kColumns = 32, kPad = 8;

template <typename N>
struct Memory {
  N a[16][kDepth + kPad];
  N rows[kDepth][kColumns + kPad];     // B as [depth][column]
  N columns[kColumns][kDepth + kPad];  // and as [column][depth]
};

// Two warps: each copies every other row, and multiplies A by 16 columns of B, read in both ways.
template <Fault kFault, typename N>
void Multiply(const N* a, const N* b, const N* b_transposed, float* c, float* d) {
  auto& m = cuda::Shared<Memory<N>>();
  for (int row = Thread() / 4; row < 32; row += 16) {
    const int part = Thread() % 4 * 8;
    if (row < 16) CopyAsync<16>(a + row * kDepth + part, 16, &m.a[row][part]);
    CopyAsync<16>(b + row * kColumns + part, 16, &m.rows[row][part]);
    CopyAsync<16>(b_transposed + row * kDepth + part, 16, &m.columns[row][part]);
  }
  if (kFault != Fault::kNoCommit) cuda::CommitCopies();
  if (kFault != Fault::kNoWait) cuda::WaitForCopies();
  if (kFault != Fault::kNoBarrier) cuda::SyncBlock();
  const int lane = Lane(), first = cuda::Warp() * 16;
  float by_rows[2][4] = {}, by_columns[2][4] = {};
  for (int k = 0; k < kDepth; k += 16) {
    int from = lane % 16, at = lane / 16 * 8;
    if (kFault == Fault::kRowsSwapped) from ^= 8;
    if (kFault == Fault::kLanesRotated) from = (lane + 8) % 16, at = (lane + 8) / 16 % 2 * 8;
    cuda::FragmentA left;
    cuda::LoadMatrix(&m.a[from][k + at], left.at);
    cuda::FragmentsB r, t;
    cuda::LoadMatrix(&m.columns[first + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8], r.at);
    const N* row = &m.rows[k + lane % 16][first + lane / 16 * 8];
    if (kFault == Fault::kNotTransposed) {
      cuda::LoadMatrix(row, t.at);
    } else {
      cuda::LoadMatrixTransposed(row, t.at);
    }
    if (kFault == Fault::kColumnsMixed) std::swap(r.at[0], r.at[1]);
    cuda::Mma<N>(left, r, by_columns[0], by_columns[1]);
    cuda::Mma<N>(left, t, by_rows[0], by_rows[1]);
  }
  for (int n = 0; n < 2; ++n)
    for (int i = 0; i < 4; ++i) {
      const int at = (lane / 4 + i / 2 * 8) * kColumns + first + n * 8 + lane % 4 * 2 + i % 2;
      c[at] = by_columns[n][i], d[at] = by_rows[n][i];
    }
}

// Whole numbers, so that there is no rounding.
float At(int row, int column, int seed) {
  return static_cast<float>((row * 37 + column * 11 + seed + row * column) % 23 - 11);
}

template <Fault kFault, typename N>
int WrongNumbers(uint32_t seed) {
  std::vector<N> a(16 * kDepth), b(kDepth * kColumns), transposed(kColumns * kDepth);
  for (int k = 0; k < kDepth; ++k) {
    for (int i = 0; i < 16; ++i) a[i * kDepth + k] = cuda::Round<N>(At(i, k, 1));
    for (int j = 0; j < kColumns; ++j)
      b[k * kColumns + j] = transposed[j * kDepth + k] = cuda::Round<N>(At(k, j, 5));
  }
  std::vector<float> c(16 * kColumns), d(16 * kColumns);
  cuda::emulation::SetSeed(seed);
  cuda::Launch<Multiply<kFault, N>>({.threads = 64, .shared = sizeof(Memory<N>)}, nullptr,
                                    static_cast<const N*>(a.data()),
                                    static_cast<const N*>(b.data()),
                                    static_cast<const N*>(transposed.data()), c.data(), d.data());
  int wrong = 0;
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < kColumns; ++j) {
      float want = 0;
      for (int k = 0; k < kDepth; ++k) want += At(i, k, 1) * At(k, j, 5);
      wrong += c[i * kColumns + j] != want || d[i * kColumns + j] != want ? 1 : 0;
    }
  return wrong;
}

TEMPLATE_TEST_CASE("fragments give a plain product, and faults another", "", BFloat16, Float16) {
  using N = TestType;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    CHECK(WrongNumbers<Fault::kNone, N>(seed) == 0);
    CHECK(WrongNumbers<Fault::kRowsSwapped, N>(seed) > 0);
    CHECK(WrongNumbers<Fault::kLanesRotated, N>(seed) > 0);
    CHECK(WrongNumbers<Fault::kColumnsMixed, N>(seed) > 0);
    CHECK(WrongNumbers<Fault::kNotTransposed, N>(seed) > 0);
    CHECK(WrongNumbers<Fault::kNoCommit, N>(seed) > 0);
    CHECK(WrongNumbers<Fault::kNoWait, N>(seed) > 0);
    CHECK(WrongNumbers<Fault::kNoBarrier, N>(seed) > 0);
  }
}

// Fragments as the PTX ISA draws them, each element identified by its position in its matrix.
void NumbersOfLanes(int* wrong) {
  auto& tile = cuda::Shared<BFloat16[4][8][8]>();
  if (Thread() < 32)
    for (int i = 0; i < 8; ++i)
      tile[Thread() / 8][Thread() % 8][i].bits =
          static_cast<uint16_t>(Thread() / 8 * 256 + Thread() % 8 * 16 + i);
  cuda::SyncWarp();
  uint32_t words[4], transposed[4];
  cuda::LoadMatrix(tile[Lane() / 8][Lane() % 8], words);
  cuda::LoadMatrixTransposed(tile[Lane() / 8][Lane() % 8], transposed);
  const uint32_t g = Lane() / 4, t = Lane() % 4;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t low = i * 256 + g * 16 + 2 * t, across = i * 256 + 2 * t * 16 + g;
    *wrong += words[i] != (low | (low + 1) << 16) ? 1 : 0;
    *wrong += transposed[i] != (across | (across + 16) << 16) ? 1 : 0;
  }
}

TEST_CASE("each lane gets the numbers that the PTX ISA gives it") {
  int wrong = 0;
  cuda::Launch<NumbersOfLanes>({.threads = 32, .shared = 512}, nullptr, &wrong);
  CHECK(wrong == 0);
}

// Groups end one by one, in order; missing data is zero.
void Groups(const float* from, float* out) {
  float* to = &cuda::Shared<float>() + 8 * Thread();
  CopyAsync<16>(from, 8, to);
  cuda::CommitCopies();
  CopyAsync<4>(from + 4, 4, to + 4);
  cuda::CommitCopies();
  cuda::WaitForCopies<1>();
  for (int i = 0; i < 5; ++i) out[i] = to[i];
  cuda::WaitForCopies();
  out[5] = to[4];
}

TEST_CASE("copies come with their group, and not before the wait") {
  const std::vector<float> from = {1, 2, 3, 4, 5};
  std::vector<float> out(6);
  cuda::Launch<Groups>({.threads = 32, .shared = 1024}, nullptr, from.data(), out.data());
  CHECK(out[0] == 1);
  CHECK(out[1] == 2);
  CHECK(out[2] == 0);
  CHECK(out[3] == 0);
  CHECK(std::isnan(out[4]));
  CHECK(out[5] == 5);
}

}  // namespace
}  // namespace pp::kernels
