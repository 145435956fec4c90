// The matrix product on one instruction set.
//
// C is cut into blocks of at most kBlockRows x kBlockColumns, the work of one thread. In a block, k
// advances by chunks, so that what is reused stays in the caches; of a chunk, B is copied in panels
// of up to kTileColumns columns, [k][columns], and a tile of registers walks down the rows (Goto
// and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008). A is read in place,
// unless it is transposed: then the chunk of A is copied in strips of kLanes rows, [k][kLanes].
//
//        columns ->  |panel|panel|…         The copies matter: rows of a weight matrix are a large
//   rows   [tile]    |     |                power of two apart, and without them the caches hold
//     v    [tile]    |     |                only a small part of a panel. Where rows of B are rows
//                                           of a panel, the first tile copies while it multiplies.
//
// What is copied becomes float; if A is not float, it is always copied, [rows][k]. If C is not, the
// sums of a block are in scratch until they are complete.
#include <type_traits>

#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/matmul_numbers.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {
namespace {

constexpr int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

// One block of C, or of its sums, and the chunk of k that is being added to it. Rows and columns
// count from those of the block. A and B begin there, too.
template <typename A, typename B>
struct Block {
  const MatmulShape& shape;  // with lda, ldb, ldc filled in
  const A* a;
  const B* b;
  float* c;
  int64_t ldc;
  const float *bias, *residual;  // null: none
  int64_t rows, columns, k, depth;
  float* packed_a;
  float* panel_b;

  bool adds() const { return k > 0 || shape.update == Update::kAdd; }
  bool ends() const { return k + depth == shape.k; }
};

// panel[k][column] = op(B)[k, column], with zeros in the columns beyond B.
template <int kVectors, typename Block>
void CopyPanelOfB(const Block& block, int64_t column, int64_t columns) {
  constexpr int kColumns = kVectors * kLanes;
  const int64_t ldb = block.shape.ldb;
  if (block.shape.operands == Operands::kNT) {
    const auto* b = block.b + column * ldb + block.k;
    CopyTransposedPanel<kColumns>(b, ldb, columns, block.depth, block.panel_b);
    return;
  }
  const auto* b = block.b + block.k * ldb + column;
  float* panel = block.panel_b;
  for (int64_t k = 0; k < block.depth; ++k, b += ldb, panel += kColumns) {
    for (int j = 0; j < kColumns; j += kLanes)
      Store(panel + j, j < columns ? LoadUpTo(b + j, columns - j) : Broadcast(0));
  }
}

// Of A[k, m]: strips[strip][k][row of the strip], with zeros in the rows beyond A. Four strips at a
// time, as memory is read faster in longer pieces and too many strips evict each other.
template <typename Block>
void CopyTransposedA(const Block& block) {
  constexpr int64_t kTogether = 4 * kLanes;
  const int64_t lda = block.shape.lda;
  for (int64_t first = 0; first < block.rows; first += kTogether) {
    const int64_t rows = Least(block.rows - first, kTogether);
    const auto* a = block.a + block.k * lda + first;
    for (int64_t k = 0; k < block.depth; ++k, a += lda) {
      float* strip = block.packed_a + first * block.depth + k * kLanes;
      for (int64_t i = 0; i < rows; i += kLanes, strip += kLanes * block.depth) {
        Store(strip, rows - i >= kLanes ? Load(a + i) : LoadPart(a + i, rows - i));
      }
    }
  }
}

// A[m, k] as floats, without gaps.
template <typename Block>
void CopyA(const Block& block) {
  for (int64_t i = 0; i < block.rows; ++i) {
    const auto* a = block.a + i * block.shape.lda + block.k;
    float* out = block.packed_a + i * block.depth;
    for (int64_t k = 0; k < block.depth; k += kLanes)
      StoreUpTo(out + k, LoadUpTo(a + k, block.depth - k), block.depth - k);
  }
}

// Prefetches, line by line, a region of memory, `rows` rows of `length` elements, `stride` apart,
// so that `calls` calls of Next() prefetch all of it.
template <typename Number>
class Prefetcher {
 public:
  Prefetcher(const Number* first, int64_t rows, int64_t length, int64_t stride, int64_t calls)
      : rows_(rows), stride_(stride) {
    const int64_t into_line =
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(first) / sizeof(Number) % kLine);
    row_ = first - into_line;
    length_ = length + into_line;
    const int64_t lines = rows * ((length_ + kLine - 1) / kLine);
    each_ = calls > 0 ? (lines + calls - 1) / calls : 0;
  }

  PP_INLINE void Next() {
    for (int64_t i = 0; i < each_ && rows_ > 0; ++i) {
      __builtin_prefetch(row_ + at_, 0, 2);
      at_ += kLine;
      if (at_ < length_) continue;
      at_ = 0;
      row_ += stride_;
      --rows_;
    }
  }

 private:
  static constexpr int64_t kLine = 64 / sizeof(Number);  // of a cache
  const Number* row_;
  int64_t rows_, length_, stride_, each_, at_ = 0;
};

// What the panel after `column` will read of B: of this chunk, or else of the next one.
template <typename A, typename B>
Prefetcher<B> NextPanelOfB(const Block<A, B>& block, int64_t column, int64_t calls) {
  const int64_t ldb = block.shape.ldb, end = block.columns;
  int64_t k = block.k, depth = block.depth;
  if (column >= end) {
    column = 0;
    k += depth;
    depth = Least(block.shape.k - k, depth);
  }
  const int64_t columns = Least(end - column, kTileColumns);
  if (block.shape.operands == Operands::kNT) {
    return {block.b + column * ldb + k, depth > 0 ? columns : 0, depth, ldb, calls};
  }
  return {block.b + k * ldb + column, depth, columns, ldb, calls};
}

// What the tile after row i of the block and `column` will read of C: below it, or else at the top
// of the next panel.
template <typename Block>
Prefetcher<float> NextTileOfC(const Block& block, int64_t i, int64_t column, int64_t columns,
                              int64_t calls) {
  i += kTileRows;
  if (i >= block.rows) {
    i = 0;
    column += columns;
    columns = Least(block.columns - column, kTileColumns);
  }
  const float* c = block.c + i * block.ldc + column;
  return {c, columns > 0 ? Least(block.rows - i, kTileRows) : 0, columns, block.ldc, calls};
}

// Adds to `sum` what up to kLanes of `left` elements of C contain besides the product.
template <typename Block>
PP_INLINE Vec Finish(const Block& block, Vec sum, int64_t row, int64_t column, int64_t left) {
  const int64_t at = row * block.ldc + column;
  if (block.adds()) sum = LoadUpTo(block.c + at, left) + sum;
  if (!block.ends()) return sum;
  if (block.bias != nullptr) sum += LoadUpTo(block.bias + column, left);
  if (block.residual != nullptr) sum += LoadUpTo(block.residual + at, left);
  return sum;
}

// c[i][j] = value(acc[i][j], i, j, where c[i][j] lies) for a whole tile.
template <int kVectors, typename F>
PP_INLINE void StoreWhole(const Tile<kTileRows, kVectors>& tile, float* c, int64_t ldc,
                          const F& value) {
#pragma GCC unroll 64
  for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 64
    for (int j = 0; j < kVectors; ++j) {
      float* p = c + i * ldc + j * kLanes;
      Store(p, value(tile.acc[i][j], i, j, p));
    }
  }
}

template <int kVectors, typename Block>
PP_INLINE void StoreTile(const Block& block, const Tile<kTileRows, kVectors>& tile, int64_t row,
                         int64_t rows, int64_t column, int64_t columns) {
  float* c = block.c + row * block.ldc + column;
  if (rows == kTileRows && columns == kVectors * kLanes) {
    // The frequent cases have loops without conditions.
    const bool nothing_else = block.bias == nullptr && block.residual == nullptr;
    if (nothing_else && !block.adds()) {
      StoreWhole(tile, c, block.ldc, [](Vec sum, int, int, float*) PP_LAMBDA { return sum; });
    } else if (nothing_else) {
      StoreWhole(tile, c, block.ldc,
                 [](Vec sum, int, int, float* p) PP_LAMBDA { return Load(p) + sum; });
    } else {
      StoreWhole(tile, c, block.ldc, [&](Vec sum, int i, int j, float*) PP_LAMBDA {
        return Finish(block, sum, row + i, column + j * kLanes, kLanes);
      });
    }
    return;
  }
  float sums[kTileRows][kVectors * kLanes];
  for (int i = 0; i < kTileRows; ++i) {
    for (int j = 0; j < kVectors; ++j) Store(&sums[i][j * kLanes], tile.acc[i][j]);
  }
  for (int64_t i = 0; i < rows; ++i, c += block.ldc) {
    for (int64_t j = 0; j < columns; j += kLanes) {
      const int64_t left = columns - j;
      StoreUpTo(c + j, Finish(block, Load(&sums[i][j]), row + i, column + j, left), left);
    }
  }
}

// kTileRows rows of A in place, `lda` apart. Few pointers, so that all stay in registers.
struct RowsOfA {
  const float *a, *a3, *a6;
  int64_t lda;

  RowsOfA(const float* a, int64_t lda)
      : a(a), a3(a + 3 * lda), a6(kTileRows > 6 ? a + 6 * lda : nullptr), lda(lda) {}

  PP_INLINE float operator()(int row, int64_t k) const {
    const float* p = row < 3 ? a : row < 6 ? a3 : a6;
    return p[row % 3 * lda + k];
  }
};

// A tile at row i of the block. b: the rows of the panel, ldb apart.
template <int kVectors, CopyRows kCopy, typename A, typename B, typename Prefetch>
PP_INLINE void MultiplyRows(const Block<A, B>& block, int64_t i, int64_t column, int64_t columns,
                            const float* b, int64_t ldb, const Prefetch& prefetch) {
  const MatmulShape& shape = block.shape;
  const int64_t rows = Least(block.rows - i, kTileRows);
  Tile<kTileRows, kVectors> tile;
  if (shape.operands == Operands::kTN) {
    const float* a = block.packed_a + i / kLanes * kLanes * block.depth + i % kLanes;
    MultiplyTile<kCopy>(
        tile, [a](int row, int64_t k) PP_LAMBDA { return a[k * kLanes + row]; }, b, ldb,
        block.depth, prefetch, block.panel_b);
  } else {
    const float* first = block.packed_a + i * block.depth;
    int64_t lda = block.depth;
    if constexpr (sizeof(A) == sizeof(float)) {
      first = block.a + i * shape.lda + block.k;
      lda = shape.lda;
    }
    if (rows == kTileRows) {
      MultiplyTile<kCopy>(tile, RowsOfA(first, lda), b, ldb, block.depth, prefetch, block.panel_b);
    } else {
      const float* a[kTileRows];
      for (int row = 0; row < kTileRows; ++row)
        a[row] = first + (row < rows ? row : 0) * lda;  // computes row 0 again, which is discarded
      MultiplyTile<kCopy>(
          tile, [&a](int row, int64_t k) PP_LAMBDA { return a[row][k]; }, b, ldb, block.depth,
          prefetch, block.panel_b);
    }
  }
  StoreTile<kVectors>(block, tile, i, rows, column, columns);
}

// One chunk of k, one panel of B, all rows of the block.
template <int kVectors, typename A, typename B>
void MultiplyPanel(const Block<A, B>& block, int64_t column, int64_t columns) {
  constexpr int kColumns = kVectors * kLanes;
  const MatmulShape& shape = block.shape;
  const int64_t calls = block.depth / kPrefetchSteps;  // in one tile
  auto next_b =
      NextPanelOfB(block, column + columns, calls * ((block.rows + kTileRows - 1) / kTileRows));
  constexpr bool kFloats = std::is_same_v<B, float>;
  const bool copy_first = !kFloats || shape.operands == Operands::kNT || columns < kColumns;
  if (copy_first) CopyPanelOfB<kVectors>(block, column, columns);
  for (int64_t i = 0; i < block.rows; i += kTileRows) {
    auto next_c = NextTileOfC(block, i, column, columns, calls);
    const auto prefetch = [&]() PP_LAMBDA {
      next_b.Next();
      next_c.Next();
    };
    if constexpr (kFloats) {
      if (i == 0 && !copy_first) {
        const float* b = block.b + block.k * shape.ldb + column;
        MultiplyRows<kVectors, CopyRows::kYes>(block, i, column, columns, b, shape.ldb, prefetch);
        continue;
      }
    }
    MultiplyRows<kVectors, CopyRows::kNo>(block, i, column, columns, block.panel_b, kColumns,
                                          prefetch);
  }
}

// Panels have three vectors while there are enough, then what is left; of four the next takes two,
// as a panel of a single one would stall on its loads.
template <typename Block>
void MultiplyChunk(const Block& block) {
  for (int64_t j = 0; j < block.columns;) {
    const int64_t left = block.columns - j;
    const int64_t vectors = (left + kLanes - 1) / kLanes;
    if (vectors == 3 || vectors > 4) {
      MultiplyPanel<3>(block, j, Least(left, 3 * kLanes));
      j += 3 * kLanes;
    } else if (vectors == 2 || vectors == 4) {
      MultiplyPanel<2>(block, j, Least(left, 2 * kLanes));
      j += 2 * kLanes;
    } else {
      MultiplyPanel<1>(block, j, left);
      j += kLanes;
    }
  }
}

template <typename A, typename B>
void MultiplyBlock(Block<A, B> block) {
  const int64_t step = ChunkDepth(block.shape.m, block.shape.k);
  for (block.k = 0; block.k < block.shape.k; block.k += step) {
    block.depth = Least(block.shape.k - block.k, step);
    if (block.shape.operands == Operands::kTN) {
      CopyTransposedA(block);
    } else if (sizeof(A) < sizeof(float)) {
      CopyA(block);
    }
    MultiplyChunk(block);
  }
}

template <typename A, typename B, typename C>
void Multiply(const MatmulRunArgs& run) {
  const MatmulShape& shape = run.shape;
  const int64_t down = (shape.m + kBlockRows - 1) / kBlockRows;
  int64_t across = (shape.n + kBlockColumns - 1) / kBlockColumns;
  // The same number of blocks for each thread. Where columns are cut does not affect any element of
  // C.
  while (down * across % run.threads != 0) ++across;
  constexpr int64_t kPanel = kTileColumns;
  const int64_t columns = ((shape.n + across - 1) / across + kPanel - 1) / kPanel * kPanel;
  ParallelFor(down * across, run.threads, [&](int64_t i, int thread) {
    const int64_t row = i / across * kBlockRows, column = i % across * columns;
    if (column >= shape.n) return;
    float* scratch =
        ScratchOf(thread, ScratchFloats(shape.numbers), run.args.scratch, run.args.helpers);
    const OutputBlock<C> out(
        run, {row, Least(shape.m - row, kBlockRows), column, Least(shape.n - column, columns)},
        scratch + kPackedFloats);
    MultiplyBlock<A, B>({.shape = shape,
                         .a = RowOfA<A>(run, row),
                         .b = ColumnOfB<B>(run, column),
                         .c = out.c,
                         .ldc = out.ldc,
                         .bias = out.bias,
                         .residual = out.residual,
                         .rows = out.at.rows,
                         .columns = out.at.columns,
                         .k = 0,
                         .depth = 0,
                         .packed_a = scratch + kPanelFloats,
                         .panel_b = scratch});
    out.Round();
  });
}

}  // namespace

void MatmulRun(const MatmulRunArgs& run) {
  WithEpilogue(run, [](const MatmulRunArgs& plain) {
    ForNumbers(plain.shape.numbers,
               [&]<typename A, typename B, typename C>() { Multiply<A, B, C>(plain); });
  });
}

}  // namespace pp::kernels::PP_ISA
