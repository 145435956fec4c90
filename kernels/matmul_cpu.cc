// The matrix product on one instruction set.
//
// C is cut into blocks of kBlockRows x kBlockColumns, the work of one thread. In a block, k
// advances by chunks, so that what is used again stays in the second-level cache; of a chunk, B is
// copied in panels of kTileColumns columns, [k][kTileColumns], and a tile of registers walks down
// the rows (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008). A is
// read where it lies, unless it is transposed: then the block of A is copied in panels of kTileRows
// rows, [k][kTileRows].
//
//        columns ->  |panel|panel|…         The copies matter: rows of a weight matrix lie a large
//   rows   [tile]    |     |                power of two apart, and without them the caches hold
//   only
//     v    [tile]    |     |                a small part of a panel.
#include "kernels/isa.h"
#include "kernels/matmul_blocks.h"
#include "kernels/parallel.h"
#include "kernels/tile.h"

namespace pp::kernels::PP_ISA {
namespace {

// One block of C and the chunk of k that is being added to it.
struct Block {
  const MatmulShape& shape;  // with lda, ldb, ldc filled in
  const MatmulArgs& args;
  int64_t row, rows, column, columns, k, depth;
  float* panel_a;  // kTranspose only
  float* panel_b;
};

// panel[k][column] = op(B)[k, column], with zeros in the columns beyond B.
void CopyPanelOfB(const Block& block, int64_t column, int64_t columns) {
  const int64_t ldb = block.shape.ldb;
  if (block.shape.operands == Operands::kNT) {
    const float* b = block.args.b + column * ldb + block.k;
    CopyTransposedPanel<kTileColumns>(b, ldb, columns, block.depth, block.panel_b);
    return;
  }
  const float* b = block.args.b + block.k * ldb + column;
  float* panel = block.panel_b;
  for (int64_t k = 0; k < block.depth; ++k, b += ldb, panel += kTileColumns) {
    if (columns == kTileColumns) {
      for (int j = 0; j < kTileColumns; j += kLanes) Store(panel + j, Load(b + j));
    } else {
      for (int j = 0; j < kTileColumns; ++j) panel[j] = j < columns ? b[j] : 0;
    }
  }
}

// Of A[k, m]: panel_a[tile][k][row of the tile], with zeros in the rows beyond A. Goes down a
// strip of 64 columns of A, so that each line of it is read once.
void CopyTransposedA(const Block& block) {
  constexpr int64_t kStrip = 64;
  const int64_t lda = block.shape.lda;
  for (int64_t strip = 0; strip < block.rows; strip += kStrip) {
    const int64_t rows = block.rows - strip < kStrip ? block.rows - strip : kStrip;
    const float* a = block.args.a + block.k * lda + block.row + strip;
    for (int64_t k = 0; k < block.depth; ++k, a += lda) {
      float* panel = block.panel_a + strip * block.depth + k * kTileRows;
      int64_t row = 0;
      for (; row + kTileRows <= rows; row += kTileRows, panel += kTileRows * block.depth) {
        for (int i = 0; i < kTileRows; ++i) panel[i] = a[row + i];
      }
      for (int i = 0; row < rows && i < kTileRows; ++i) panel[i] = row + i < rows ? a[row + i] : 0;
    }
  }
}

// Asks, line by line, for a region of memory: `rows` rows of `length` floats, `stride` apart.
struct Prefetcher {
  const float* row;
  int64_t rows, length, stride;
  int64_t at = 0;

  PP_INLINE void Next() {
    if (rows <= 0) return;
    __builtin_prefetch(row + at, 0, 2);
    at += 16;
    if (at < length) return;
    at = 0;
    row += stride;
    --rows;
  }
};

// What CopyPanelOfB will read at `column`.
Prefetcher PanelOfB(const Block& block, int64_t column) {
  const int64_t left = block.shape.n - column, ldb = block.shape.ldb;
  const int64_t columns = left < kTileColumns ? left : kTileColumns;
  if (block.shape.operands == Operands::kNT) {
    return {block.args.b + column * ldb + block.k, columns, block.depth, ldb};
  }
  return {block.args.b + block.k * ldb + column, block.depth, columns + 15, ldb};
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

void StoreTile(const Block& block, const Tile<kTileRows, kTileVectors>& tile, int64_t row,
               int64_t rows, int64_t column, int64_t columns) {
  if (rows == kTileRows && columns == kTileColumns) {
#pragma GCC unroll 64
    for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 64
      for (int j = 0; j < kTileVectors; ++j) {
        const int64_t c = column + j * kLanes;
        Store(block.args.c + (row + i) * block.shape.ldc + c,
              Finish(block, tile.acc[i][j], row + i, c));
      }
    }
    return;
  }
  float sums[kTileRows][kTileColumns];
  for (int i = 0; i < kTileRows; ++i) {
    for (int j = 0; j < kTileVectors; ++j) Store(&sums[i][j * kLanes], tile.acc[i][j]);
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      block.args.c[(row + i) * block.shape.ldc + column + j] =
          Finish(block, sums[i][j], row + i, column + j);
    }
  }
}

// One chunk of k, one panel of B, all rows of the block.
void MultiplyPanel(const Block& block, int64_t column, int64_t columns) {
  const MatmulShape& shape = block.shape;
  Prefetcher next_panel = PanelOfB(block, column + kTileColumns);
  for (int64_t i = 0; i < block.rows; i += kTileRows) {
    const int64_t rows = block.rows - i < kTileRows ? block.rows - i : kTileRows;
    Prefetcher next_c = {block.args.c + (block.row + i + kTileRows) * shape.ldc + column,
                         block.rows - i - rows, columns + 15, shape.ldc};
    const auto prefetch = [&]() PP_LAMBDA {
      next_panel.Next();
      next_c.Next();
    };
    Tile<kTileRows, kTileVectors> tile;
    if (shape.operands == Operands::kTN) {
      const float* a = block.panel_a + i * block.depth;
      MultiplyTile(
          tile, [a](int r, int64_t k) { return a[k * kTileRows + r]; }, block.panel_b, kTileColumns,
          block.depth, prefetch);
    } else {
      const float* a[kTileRows];
#pragma GCC unroll 64
      for (int r = 0; r < kTileRows; ++r) {
        const int64_t inside = r < rows ? r : 0;  // an edge computes row 0 again, and drops it
        a[r] = block.args.a + (block.row + i + inside) * shape.lda + block.k;
      }
      MultiplyTile(
          tile, [&a](int r, int64_t k) { return a[r][k]; }, block.panel_b, kTileColumns,
          block.depth, prefetch);
    }
    StoreTile(block, tile, block.row + i, rows, column, columns);
  }
}

void MultiplyBlock(Block block) {
  const int64_t step = ChunkDepth(block.shape.k);
  for (block.k = 0; block.k < block.shape.k; block.k += step) {
    block.depth = block.shape.k - block.k < step ? block.shape.k - block.k : step;
    if (block.shape.operands == Operands::kTN) CopyTransposedA(block);
    for (int64_t j = 0; j < block.columns; j += kTileColumns) {
      const int64_t columns = block.columns - j < kTileColumns ? block.columns - j : kTileColumns;
      CopyPanelOfB(block, block.column + j, columns);
      MultiplyPanel(block, block.column + j, columns);
    }
  }
}

}  // namespace

void MatmulRun(const MatmulRunArgs& run) {
  const MatmulShape& shape = run.shape;
  const int64_t down = (shape.m + kBlockRows - 1) / kBlockRows;
  const int64_t across = (shape.n + kBlockColumns - 1) / kBlockColumns;
  ParallelFor(down * across, run.threads, [&](int64_t i, int thread) {
    const int64_t row = i / across * kBlockRows, column = i % across * kBlockColumns;
    float* scratch = static_cast<float*>(run.args.scratch) + thread * kBlockScratchFloats;
    MultiplyBlock({.shape = shape,
                   .args = run.args,
                   .row = row,
                   .rows = shape.m - row < kBlockRows ? shape.m - row : kBlockRows,
                   .column = column,
                   .columns = shape.n - column < kBlockColumns ? shape.n - column : kBlockColumns,
                   .k = 0,
                   .depth = 0,
                   .panel_a = scratch + kPanelFloats,
                   .panel_b = scratch});
  });
}

}  // namespace pp::kernels::PP_ISA
