// Products of a warpgroup (kernels/block/warpgroup_mma.h), in the emulation: right ones give a
// plain product, and each planted fault is found.
#include "kernels/block/warpgroup_mma.h"

#include <catch2/catch.hpp>
#include <stdexcept>
#include <vector>

namespace pp::kernels {
namespace {

using cuda::Lane;
using cuda::Thread;

enum class Fault { kNone, kNotSwizzled, kNoWait, kOverwritten, kNoCommit, kNotShown, kNotAligned };

constexpr int kSide = cuda::kTileSide;

template <typename N>
struct alignas(cuda::kTileAlign) Memory {
  N a[kSide * kSide], b[kSide * kSide], more[kSide];
};

// In two results: A times B^T, and 1 + A B, with A in registers.
template <Fault kFault, typename N>
void Multiply(const N* a, const N* b, float* results) {
  auto& m = cuda::Shared<Memory<N>>();
  N* right = kFault == Fault::kNotAligned ? m.b + kSide : m.b;
  for (int i = Thread() * 8; i < kSide * kSide; i += cuda::kGroupThreads * 8) {
    const int to = kFault == Fault::kNotSwizzled ? i : cuda::InTile(i / kSide, i % kSide);
    cuda::CopyAsync<16>(a + i, 16, m.a + to);
    cuda::CopyAsync<16>(b + i, 16, right + to);
  }
  cuda::CommitCopies();
  if (kFault == Fault::kNotShown) {
    cuda::WaitForCopies();
    cuda::SyncBlock();
  } else {
    cuda::MeetCopies();
  }
  cuda::TileFragments left;
  for (int k = 0; k < 4; ++k)
    cuda::LoadMatrix(m.a + cuda::InTile(cuda::Warp() * 16 + Lane() % 16, k * 16 + Lane() / 16 * 8),
                     left[k].at);
  cuda::TileSums rows, columns;
  for (auto& four : columns) four[0] = four[1] = four[2] = four[3] = 1;
  cuda::BeginProducts(columns, left);
  cuda::MultiplyTileRows<cuda::Adds::kNo>(m.a, right, rows);
  cuda::MultiplyTileColumns(left, right, columns);
  if (kFault != Fault::kNoCommit) cuda::CommitProducts();
  if (kFault == Fault::kOverwritten) m.b[Thread() * 8] = {};
  if (kFault != Fault::kNoWait) cuda::WaitForProducts(rows, columns, left);
  for (const cuda::TileSums* sums : {&rows, &columns}) {
    for (int n = 0; n < 8; ++n)
      for (int i = 0; i < 4; ++i) {
        const int row = cuda::Warp() * 16 + Lane() / 4 + i / 2 * 8;
        results[row * kSide + n * 8 + Lane() % 4 * 2 + i % 2] = (*sums)[n][i];
      }
    results += kSide * kSide;
  }
}

// Whole numbers, so that there is no rounding.
float At(int row, int column, int seed) {
  return static_cast<float>((row * 37 + column * 11 + seed + row * column) % 23 - 11);
}

template <Fault kFault, typename N>
int WrongNumbers() {
  std::vector<N> a(kSide * kSide), b(kSide * kSide);
  for (int i = 0; i < kSide * kSide; ++i) {
    a[i] = cuda::Round<N>(At(i / kSide, i % kSide, 1));
    b[i] = cuda::Round<N>(At(i / kSide, i % kSide, 5));
  }
  std::vector<float> results(2 * kSide * kSide);
  cuda::Launch<Multiply<kFault, N>>({.threads = cuda::kGroupThreads, .shared = sizeof(Memory<N>)},
                                    nullptr, static_cast<const N*>(a.data()),
                                    static_cast<const N*>(b.data()), results.data());
  int wrong = 0;
  for (int i = 0; i < kSide; ++i)
    for (int j = 0; j < kSide; ++j) {
      float rows = 0, columns = 1;
      for (int k = 0; k < kSide; ++k) {
        rows += At(i, k, 1) * At(j, k, 5);
        columns += At(i, k, 1) * At(k, j, 5);
      }
      const float want[] = {rows, columns};
      for (int r = 0; r < 2; ++r) wrong += results[(r * kSide + i) * kSide + j] == want[r] ? 0 : 1;
    }
  return wrong;
}

TEMPLATE_TEST_CASE("tiles give plain products, and faults others", "", BFloat16, Float16) {
  using N = TestType;
  CHECK(WrongNumbers<Fault::kNone, N>() == 0);
  CHECK(WrongNumbers<Fault::kNotSwizzled, N>() > 0);
  CHECK(WrongNumbers<Fault::kNoWait, N>() > 0);
  CHECK(WrongNumbers<Fault::kOverwritten, N>() > 0);
  CHECK_THROWS_AS((WrongNumbers<Fault::kNoCommit, N>()), std::runtime_error);
  CHECK_THROWS_AS((WrongNumbers<Fault::kNotShown, N>()), std::runtime_error);
  CHECK_THROWS_AS((WrongNumbers<Fault::kNotAligned, N>()), std::runtime_error);
}

}  // namespace
}  // namespace pp::kernels
