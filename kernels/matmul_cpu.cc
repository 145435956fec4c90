// The matrix product on one instruction set.
//
// C is cut into blocks of at most kBlockRows x kBlockColumns, the work of one thread. In a block, k
// advances by chunks, so that what is used again stays in the caches; of a chunk, B is copied in
// panels of up to kTileColumns columns, [k][columns], and a tile of registers walks down the rows
// (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008). A is read
// where it lies, unless it is transposed: then the chunk of A is copied in strips of kLanes rows,
// [k][kLanes].
//
//        columns ->  |panel|panel|…         The copies matter: rows of a weight matrix lie a large
//   rows   [tile]    |     |                power of two apart, and without them the caches hold
//     v    [tile]    |     |                only a small part of a panel. Where rows of B are rows
//                                           of a panel, the first tile copies while it multiplies.
#include "kernels/isa.h"
#include "kernels/matmul_blocks.h"
#include "kernels/parallel.h"
#include "kernels/tile.h"

namespace pp::kernels::PP_ISA {
namespace {

constexpr int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

// One block of C and the chunk of k that is being added to it.
struct Block {
  const MatmulShape& shape;  // with lda, ldb, ldc filled in
  const MatmulArgs& args;
  int64_t row, rows, column, columns, k, depth;
  float* strips_a;  // kTN only
  float* panel_b;
};

// panel[k][column] = op(B)[k, column], with zeros in the columns beyond B.
template <int kVectors>
void CopyPanelOfB(const Block& block, int64_t column, int64_t columns) {
  constexpr int kColumns = kVectors * kLanes;
  const int64_t ldb = block.shape.ldb;
  if (block.shape.operands == Operands::kNT) {
    const float* b = block.args.b + column * ldb + block.k;
    CopyTransposedPanel<kColumns>(b, ldb, columns, block.depth, block.panel_b);
    return;
  }
  const float* b = block.args.b + block.k * ldb + column;
  float* panel = block.panel_b;
  for (int64_t k = 0; k < block.depth; ++k, b += ldb, panel += kColumns) {
    for (int j = 0; j < kColumns; ++j) panel[j] = j < columns ? b[j] : 0;
  }
}

// Of A[k, m]: strips[strip][k][row of the strip], with zeros in the rows beyond A. Four strips at a
// time, as memory is read faster in longer pieces and too many strips are in each other's way.
void CopyTransposedA(const Block& block) {
  constexpr int64_t kTogether = 4 * kLanes;
  const int64_t lda = block.shape.lda;
  for (int64_t first = 0; first < block.rows; first += kTogether) {
    const int64_t rows = Least(block.rows - first, kTogether);
    const float* a = block.args.a + block.k * lda + block.row + first;
    for (int64_t k = 0; k < block.depth; ++k, a += lda) {
      float* strip = block.strips_a + first * block.depth + k * kLanes;
      for (int64_t i = 0; i < rows; i += kLanes, strip += kLanes * block.depth) {
        Store(strip, rows - i >= kLanes ? Load(a + i) : LoadPart(a + i, rows - i));
      }
    }
  }
}

// Asks, line by line, for a region of memory, `rows` rows of `length` floats, `stride` apart, so
// that `calls` calls of Next() ask for all of it.
class Prefetcher {
 public:
  Prefetcher(const float* first, int64_t rows, int64_t length, int64_t stride, int64_t calls)
      : rows_(rows), stride_(stride) {
    const int64_t into_line = static_cast<int64_t>(reinterpret_cast<uintptr_t>(first) / 4 % kLine);
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
  static constexpr int64_t kLine = 16;  // floats of a cache line
  const float* row_;
  int64_t rows_, length_, stride_, each_, at_ = 0;
};

// What the panel behind `column` will read of B: of this chunk, or else of the next one.
Prefetcher NextPanelOfB(const Block& block, int64_t column, int64_t calls) {
  const int64_t ldb = block.shape.ldb, end = block.column + block.columns;
  int64_t k = block.k, depth = block.depth;
  if (column >= end) {
    column = block.column;
    k += depth;
    depth = Least(block.shape.k - k, depth);
  }
  const int64_t columns = Least(end - column, kTileColumns);
  if (block.shape.operands == Operands::kNT) {
    return {block.args.b + column * ldb + k, depth > 0 ? columns : 0, depth, ldb, calls};
  }
  return {block.args.b + k * ldb + column, depth, columns, ldb, calls};
}

// What the tile behind row i of the block and `column` will read of C: below it, or else on top of
// the next panel.
Prefetcher NextTileOfC(const Block& block, int64_t i, int64_t column, int64_t columns,
                       int64_t calls) {
  i += kTileRows;
  if (i >= block.rows) {
    i = 0;
    column += columns;
    columns = Least(block.column + block.columns - column, kTileColumns);
  }
  const float* c = block.args.c + (block.row + i) * block.shape.ldc + column;
  return {c, columns > 0 ? Least(block.rows - i, kTileRows) : 0, columns, block.shape.ldc, calls};
}

// Adds to `sum` what belongs to vector c of C besides the product.
PP_INLINE Vec Finish(const Block& block, Vec sum, int64_t row, int64_t column) {
  const MatmulShape& shape = block.shape;
  if (block.k > 0 || shape.update == Update::kAdd) {
    sum = Load(block.args.c + row * shape.ldc + column) + sum;
  }
  if (block.k + block.depth < shape.k) return sum;
  if (shape.bias == WithBias::kYes) sum += Load(block.args.bias + column);
  if (shape.residual == WithResidual::kYes) {
    sum += Load(block.args.residual + row * shape.ldc + column);
  }
  return sum;
}

// The same for single floats, at the right and lower edge.
PP_INLINE float Finish(const Block& block, float sum, int64_t row, int64_t column) {
  const MatmulShape& shape = block.shape;
  const int64_t at = row * shape.ldc + column;
  if (block.k > 0 || shape.update == Update::kAdd) sum = block.args.c[at] + sum;
  if (block.k + block.depth < shape.k) return sum;
  if (shape.bias == WithBias::kYes) sum += block.args.bias[column];
  if (shape.residual == WithResidual::kYes) sum += block.args.residual[at];
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

template <int kVectors>
PP_INLINE void StoreTile(const Block& block, const Tile<kTileRows, kVectors>& tile, int64_t row,
                         int64_t rows, int64_t column, int64_t columns) {
  const MatmulShape& shape = block.shape;
  float* c = block.args.c + row * shape.ldc + column;
  if (rows == kTileRows && columns == kVectors * kLanes) {
    // The frequent cases have loops without conditions.
    const bool nothing_else = shape.bias == WithBias::kNo && shape.residual == WithResidual::kNo;
    if (nothing_else && block.k == 0 && shape.update == Update::kSet) {
      StoreWhole(tile, c, shape.ldc, [](Vec sum, int, int, float*) PP_LAMBDA { return sum; });
    } else if (nothing_else) {
      StoreWhole(tile, c, shape.ldc,
                 [](Vec sum, int, int, float* p) PP_LAMBDA { return Load(p) + sum; });
    } else {
      StoreWhole(tile, c, shape.ldc, [&](Vec sum, int i, int j, float*) PP_LAMBDA {
        return Finish(block, sum, row + i, column + j * kLanes);
      });
    }
    return;
  }
  float sums[kTileRows][kVectors * kLanes];
  for (int i = 0; i < kTileRows; ++i) {
    for (int j = 0; j < kVectors; ++j) Store(&sums[i][j * kLanes], tile.acc[i][j]);
  }
  for (int64_t i = 0; i < rows; ++i, c += shape.ldc) {
    int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) {
      Store(c + j, Finish(block, Load(&sums[i][j]), row + i, column + j));
    }
    for (; j < columns; ++j) c[j] = Finish(block, sums[i][j], row + i, column + j);
  }
}

// kTileRows rows of A where they lie, `lda` apart. Few pointers, so that all stay in registers.
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
template <int kVectors, CopyRows kCopy, typename Prefetch>
PP_INLINE void MultiplyRows(const Block& block, int64_t i, int64_t column, int64_t columns,
                            const float* b, int64_t ldb, const Prefetch& prefetch) {
  const MatmulShape& shape = block.shape;
  const int64_t rows = Least(block.rows - i, kTileRows);
  Tile<kTileRows, kVectors> tile;
  if (shape.operands == Operands::kTN) {
    const float* a = block.strips_a + i / kLanes * kLanes * block.depth + i % kLanes;
    MultiplyTile<kCopy>(
        tile, [a](int row, int64_t k) PP_LAMBDA { return a[k * kLanes + row]; }, b, ldb,
        block.depth, prefetch, block.panel_b);
  } else if (rows == kTileRows) {
    const RowsOfA a(block.args.a + (block.row + i) * shape.lda + block.k, shape.lda);
    MultiplyTile<kCopy>(tile, a, b, ldb, block.depth, prefetch, block.panel_b);
  } else {
    const float* a[kTileRows];
    for (int row = 0; row < kTileRows; ++row) {
      const int64_t inside = row < rows ? row : 0;  // computes row 0 again, which is dropped
      a[row] = block.args.a + (block.row + i + inside) * shape.lda + block.k;
    }
    MultiplyTile<kCopy>(
        tile, [&a](int row, int64_t k) PP_LAMBDA { return a[row][k]; }, b, ldb, block.depth,
        prefetch, block.panel_b);
  }
  StoreTile<kVectors>(block, tile, block.row + i, rows, column, columns);
}

// One chunk of k, one panel of B, all rows of the block.
template <int kVectors>
void MultiplyPanel(const Block& block, int64_t column, int64_t columns) {
  constexpr int kColumns = kVectors * kLanes;
  const MatmulShape& shape = block.shape;
  const int64_t calls = block.depth / kPrefetchSteps;  // in one tile
  Prefetcher next_b =
      NextPanelOfB(block, column + columns, calls * ((block.rows + kTileRows - 1) / kTileRows));
  const bool copy_first = shape.operands == Operands::kNT || columns < kColumns;
  if (copy_first) CopyPanelOfB<kVectors>(block, column, columns);
  for (int64_t i = 0; i < block.rows; i += kTileRows) {
    Prefetcher next_c = NextTileOfC(block, i, column, columns, calls);
    const auto prefetch = [&]() PP_LAMBDA {
      next_b.Next();
      next_c.Next();
    };
    if (i == 0 && !copy_first) {
      const float* b = block.args.b + block.k * shape.ldb + column;
      MultiplyRows<kVectors, CopyRows::kYes>(block, i, column, columns, b, shape.ldb, prefetch);
    } else {
      MultiplyRows<kVectors, CopyRows::kNo>(block, i, column, columns, block.panel_b, kColumns,
                                            prefetch);
    }
  }
}

// Panels have three vectors while there are enough, then what is left; of four the next takes two,
// as a panel of one alone keeps the arithmetic waiting for its loads.
void MultiplyChunk(const Block& block) {
  for (int64_t j = 0; j < block.columns;) {
    const int64_t left = block.columns - j, column = block.column + j;
    const int64_t vectors = (left + kLanes - 1) / kLanes;
    if (vectors == 3 || vectors > 4) {
      MultiplyPanel<3>(block, column, Least(left, 3 * kLanes));
      j += 3 * kLanes;
    } else if (vectors == 2 || vectors == 4) {
      MultiplyPanel<2>(block, column, Least(left, 2 * kLanes));
      j += 2 * kLanes;
    } else {
      MultiplyPanel<1>(block, column, left);
      j += kLanes;
    }
  }
}

void MultiplyBlock(Block block) {
  const int64_t step = ChunkDepth(block.shape.m, block.shape.k);
  for (block.k = 0; block.k < block.shape.k; block.k += step) {
    block.depth = Least(block.shape.k - block.k, step);
    if (block.shape.operands == Operands::kTN) CopyTransposedA(block);
    MultiplyChunk(block);
  }
}

}  // namespace

void MatmulRun(const MatmulRunArgs& run) {
  const MatmulShape& shape = run.shape;
  const int64_t down = (shape.m + kBlockRows - 1) / kBlockRows;
  int64_t across = (shape.n + kBlockColumns - 1) / kBlockColumns;
  // As many blocks for each thread. Where columns are cut makes no difference to any number of C.
  while (down * across % run.threads != 0) ++across;
  constexpr int64_t kPanel = kTileColumns;
  const int64_t columns = ((shape.n + across - 1) / across + kPanel - 1) / kPanel * kPanel;
  ParallelFor(down * across, run.threads, [&](int64_t i, int thread) {
    const int64_t row = i / across * kBlockRows, column = i % across * columns;
    if (column >= shape.n) return;
    float* scratch = ScratchOf(thread, kBlockScratchFloats, run.args.scratch, run.args.helpers);
    MultiplyBlock({.shape = shape,
                   .args = run.args,
                   .row = row,
                   .rows = Least(shape.m - row, kBlockRows),
                   .column = column,
                   .columns = Least(shape.n - column, columns),
                   .k = 0,
                   .depth = 0,
                   .strips_a = scratch + kPanelFloats,
                   .panel_b = scratch});
  });
}

}  // namespace pp::kernels::PP_ISA
