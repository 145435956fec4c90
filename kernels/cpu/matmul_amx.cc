// The matrix product on the tile registers of AMX, which multiply bfloat16 and add fp32.
//
// A float has 24 significant bits and a bfloat16 has 8, so a float x is the exact sum of three: x =
// x0 + x1 + x2, each the rounded remainder of the ones before it. Of the nine products in x y six
// are computed, x0 y0 + x0 y1 + x1 y0 + x1 y1 + x0 y2 + x2 y0; the others are below 2^-24 |x y|,
// half a unit in the last place (Henry, Tang and Heinecke, "Leveraging the bfloat16 artificial
// intelligence datatype for higher-precision computations", ARITH 2019). An element of C takes 32
// steps of k in one go, so its sum is rounded less often than a chain of fused multiply-adds and is
// nearer to the exact one. It equals fp32 except at the ends of the range: infinity and what is
// above 3.39e38 become NaN, and below 2^-109, where x2 is subnormal, precision degrades. A product
// of elements that are bfloat16 is a single product.
//
//   A, rows 0-31   [k 0-31][k 32-63]…   A chunk of k of a block of A is packed once; panels of 32
//   A, rows 32-63  [      ][       ]…   columns of B are packed one after the other and multiplied
//                                       by all of it. A step of k of a panel is 2 tiles of each
//                                       part.
//
// The tile registers work for 16 cycles at each instruction. The other work, packing the next panel
// and adding the last sums to C, is interleaved with these in small portions, so it costs little
// time.
#include <type_traits>

#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/matmul_numbers.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile.h"
#include "kernels/isa.h"
#include "kernels/matmul_blocks.h"

namespace pp::kernels::PP_ISA {
namespace {

using namespace amx_blocks;

constexpr int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

PP_INLINE __mmask16 First(int64_t n) {
  return static_cast<__mmask16>(n >= kLanes ? 0xffff : n > 0 ? (1 << n) - 1 : 0);
}

// Element k of row i of an operand lies at p[i * ld + k] if `along` k, else at p[k * ld + i].
template <typename Number>
struct Operand {
  const Number* p;
  int64_t ld;
  bool along;
};

// For the elements of an operand.
template <typename Number>
inline constexpr int kPartsOf = sizeof(Number) == sizeof(float) ? 3 : 1;
template <>
inline constexpr int kPartsOf<Rounded<BFloat16>> = 1;

// A word of each part has that of a in its lower half and that of b in its upper one; both are 16
// elements, those outside the masks zero. For a float: adding half a unit of the remainder and
// truncating rounds to nearest. Some part of a NaN is a NaN.
PP_INLINE void Split(const float* at_a, __mmask16 mask_a, const float* at_b, __mmask16 mask_b,
                     uint32_t* out) {
  const __m512i half_unit = _mm512_set1_epi32(0x8000);
  const __m512i top = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  __m512 a = _mm512_maskz_loadu_ps(mask_a, at_a), b = _mm512_maskz_loadu_ps(mask_b, at_b);
#pragma GCC unroll 3
  for (int part = 0; part < 3; ++part, out += 2 * kTileWords) {
    __m512i x = _mm512_castps_si512(a), y = _mm512_castps_si512(b);
    if (part < 2) {
      x = _mm512_add_epi32(x, half_unit);
      y = _mm512_add_epi32(y, half_unit);
    }
    _mm512_storeu_si512(out, _mm512_mask_blend_epi16(0xaaaaaaaa, (__m512i)((Word)x >> 16), y));
    a = _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_and_si512(x, top)));
    b = _mm512_sub_ps(b, _mm512_castsi512_ps(_mm512_and_si512(y, top)));
  }
}

PP_INLINE Word LoadBits(const BFloat16* p, __mmask16 mask) {
  return __builtin_convertvector((Half)_mm256_maskz_loadu_epi16(mask, p), Word);
}
PP_INLINE Word LoadBits(const Rounded<BFloat16>* p, __mmask16 mask) {
  return Nearest((Vec)_mm512_maskz_loadu_ps(mask, &p->x));
}

template <typename Number>
PP_INLINE void Split(const Number* a, __mmask16 mask_a, const Number* b, __mmask16 mask_b,
                     uint32_t* out) {
  StoreWord(out, LoadBits(a, mask_a) | (LoadBits(b, mask_b) << 16));
}

// Packs a panel of an operand, a row of both tiles of a step at a time.
//
// A word of a tile has the elements at k and k + 16 of a step. A row of a left tile is a row of the
// panel; a right tile is the transpose of that. Memory contiguous along k gives the rows of a left
// tile, other memory those of a right one; the other kind is transposed afterwards.
//
// Functions that are not inlined get values and not the object's address, so that it stays in
// registers.
template <typename Number>
class Packer {
  static constexpr int kParts = kPartsOf<Number>;
  static constexpr int64_t kStepWords = 2 * kParts * kTileWords;

 public:
  // Rows [first, first + count) of the operand, k in [k, k + depth), and zeros beyond.
  PP_INLINE Packer(const Operand<Number>& from, int64_t first, int64_t count, int64_t k,
                   int64_t depth, bool transpose, uint32_t* out)
      : ld_(from.ld),
        to_b_(from.along ? kSide : kSide * ld_),
        to_tile_(from.along ? kSide * ld_ : kSide),
        to_step_(from.along ? kStep - kSide * ld_ : kSide * ld_),
        to_next_(from.along ? kPanel * ld_ : kPanel),
        along_(from.along),
        transpose_(transpose),
        count_(count),
        depth_(depth),
        left_(count > 0 ? DivideUp(depth, kStep) * kSide : 0),
        p_(from.p + (along_ ? first * ld_ + k : k * ld_ + first)),
        out_(out) {}

  int64_t left() const { return left_; }

  // Packs `rows` more rows, or what is left.
  PP_INLINE void Pack(int64_t rows) {
    rows = Least(rows, left_);
    if (rows <= 0) return;
    left_ -= rows;
    for (; rows > 0; --rows) {
      if (count_ >= kPanel && depth_ >= kStep) {
#pragma GCC unroll 2
        for (int tile = 0; tile < 2; ++tile) {
          const Number* a = p_ + tile * to_tile_;
          __builtin_prefetch(a + to_next_, 0, 2);
          __builtin_prefetch(a + to_next_ + to_b_, 0, 2);
          Split(a, 0xffff, a + to_b_, 0xffff, out_ + tile * kTileWords);
        }
      } else {
        PackEdge(p_, to_b_, to_tile_, along_ ? depth_ : count_, (along_ ? count_ : depth_) - row_,
                 along_, out_);
      }
      p_ += ld_;
      out_ += kSide;
      if (++row_ == kSide) {
        if (transpose_) TransposeStep(out_ - kTileWords);
        row_ = 0;
        depth_ -= kStep;
        p_ += to_step_;
        out_ += kStepWords - kTileWords;
      }
    }
  }

 private:
  // The same with zeros beyond `columns` and `rows`, counted from p.
  static __attribute__((noinline)) void PackEdge(const Number* p, int64_t to_b, int64_t to_tile,
                                                 int64_t columns, int64_t rows, bool along,
                                                 uint32_t* out) {
    const auto mask = [&](int tile, int b) PP_LAMBDA {
      const int right = along ? b : tile, below = along ? tile : b;
      return rows > below * kSide ? First(columns - right * kSide) : static_cast<__mmask16>(0);
    };
    for (int tile = 0; tile < 2; ++tile) {
      const Number* a = p + tile * to_tile;
      Split(a, mask(tile, 0), a + to_b, mask(tile, 1), out + tile * kTileWords);
    }
  }

  static __attribute__((noinline)) void TransposeStep(uint32_t* tiles) {
    for (int i = 0; i < 2 * kParts; ++i) {
      float* tile = reinterpret_cast<float*>(tiles + i * kTileWords);
      Transpose(tile, kSide, tile, kSide);
    }
  }

  // From an element of A to that of b, to that of the other tile; from the last row of a step to
  // the first of the next; to the next panel, which will be needed soon.
  const int64_t ld_, to_b_, to_tile_, to_step_, to_next_;
  const bool along_, transpose_;
  const int64_t count_;
  int64_t depth_, left_, row_ = 0;
  const Number* p_;
  uint32_t* out_;
};

// One block of C, or of its sums, and the chunk of k that is being added to it. Rows and columns
// count from those of the block.
struct Block {
  const MatmulShape& shape;  // with lda, ldb, ldc filled in
  float* c;
  int64_t ldc;
  const float *bias, *residual;  // null: none
  int64_t rows, columns, k, depth;
};

void TransposeSums(float* sums) {
  float* upper = sums + kSide;
  float* lower = sums + kSide * kPanel;
  Transpose(sums, kPanel, sums, kPanel);
  Transpose(lower + kSide, kPanel, lower + kSide, kPanel);
  alignas(64) float other[kTileWords];
  Transpose(upper, kPanel, other, kSide);
  Transpose(lower, kPanel, upper, kPanel);
  for (int64_t i = 0; i < kSide; ++i) Store(lower + i * kPanel, Load(other + i * kSide));
}

// Adds the sums of two panels to C, a row at a time.
class Finisher {
 public:
  explicit Finisher(const Block& block)
      : block_(block),
        add_(block.k > 0 || block.shape.update == Update::kAdd),
        last_(block.k + block.depth == block.shape.k) {}

  void Start(float* sums, bool transpose, int64_t row, int64_t column) {
    const int64_t columns = block_.columns - column;
    const int64_t at = row * block_.ldc + column;
    const bool bias = last_ && block_.bias != nullptr;
    const bool residual = last_ && block_.residual != nullptr;
    sums_ = sums;
    transpose_ = transpose;
    rows_ = Least(block_.rows - row, kPanel);
    masks_[0] = First(columns);
    masks_[1] = First(columns - kSide);
    c_ = block_.c + at;
    bias_ = bias ? block_.bias + column : nullptr;
    residual_ = residual ? block_.residual + at : nullptr;
    next_ = row + kPanel < block_.rows ? c_ + kPanel * block_.ldc : c_ - row * block_.ldc + kPanel;
  }

  PP_INLINE void Finish(int64_t rows) {
    rows = Least(rows, rows_);
    rows_ -= rows;
    for (; rows > 0; --rows) {
      if (transpose_) {
        TransposeSums(sums_);
        transpose_ = false;
      }
      __builtin_prefetch(next_, 1, 2);
      __builtin_prefetch(next_ + kSide, 1, 2);
      next_ += block_.ldc;
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const int64_t at = j * kSide;
        __m512 sum = _mm512_load_ps(sums_ + at);
        if (add_) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(masks_[j], c_ + at), sum);
        if (bias_) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(masks_[j], bias_ + at));
        if (residual_) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(masks_[j], residual_ + at));
        _mm512_mask_storeu_ps(c_ + at, masks_[j], sum);
      }
      sums_ += kPanel;
      c_ += block_.ldc;
      if (residual_) residual_ += block_.ldc;
    }
  }

 private:
  const Block& block_;
  const bool add_, last_;
  float* sums_ = nullptr;
  bool transpose_ = false;
  int64_t rows_ = 0;
  __mmask16 masks_[2] = {};
  float *c_ = nullptr, *next_ = nullptr;
  const float *bias_ = nullptr, *residual_ = nullptr;
};

// sums[i][j] = the product of two panels, kPanel x kPanel. `between` is called kCallsOf times in
// each step of k: once for each product of parts.
template <int kParts>
inline constexpr int64_t kCallsOf = kParts == 1 ? 1 : 6;

template <int kParts, typename Between>
PP_INLINE void MultiplyPanels(const uint32_t* left, const uint32_t* right, int64_t steps,
                              float* sums, const Between& between) {
  constexpr int kRowBytes = 64, kSumsRowBytes = 4 * kPanel;
  constexpr int64_t kStepWords = 2 * kParts * kTileWords;
  const auto load_left = [&](int part) PP_LAMBDA {
    _tile_loadd(4, left + 2 * part * kTileWords, kRowBytes);
    _tile_loadd(5, left + (2 * part + 1) * kTileWords, kRowBytes);
  };
  const auto load_right = [&](int part) PP_LAMBDA {
    _tile_loadd(6, right + 2 * part * kTileWords, kRowBytes);
    _tile_loadd(7, right + (2 * part + 1) * kTileWords, kRowBytes);
  };
  const auto multiply = [&](int64_t s) PP_LAMBDA {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    between(s);
  };
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t s = 0; s < steps; ++s, left += kStepWords, right += kStepWords) {
    if constexpr (kParts == 1) {
      load_left(0);
      load_right(0);
      multiply(s);
    } else {
      load_left(2);
      load_right(0);
      multiply(s);
      load_left(1);
      multiply(s);
      load_right(1);
      multiply(s);
      load_left(0);
      multiply(s);
      load_right(2);
      multiply(s);
      load_right(0);
      multiply(s);
    }
  }
  _tile_stored(0, sums, kSumsRowBytes);
  _tile_stored(1, sums + kSide, kSumsRowBytes);
  _tile_stored(2, sums + kSide * kPanel, kSumsRowBytes);
  _tile_stored(3, sums + kSide * kPanel + kSide, kSumsRowBytes);
}

// In kNT rows of B become rows of a left operand, so that B needs no transposition, which would
// cost more than those of A and of the sums.
template <typename A, typename B>
void MultiplyChunk(const Block& block, const A* first_a, const B* first_b, uint32_t* scratch) {
  constexpr int kParts = kPartsOf<A>;
  static_assert(kParts == kPartsOf<B>);
  constexpr int64_t kStepWords = 2 * kParts * kTileWords, kCalls = kCallsOf<kParts>;
  const MatmulShape& shape = block.shape;
  const bool nt = shape.operands == Operands::kNT, tn = shape.operands == Operands::kTN;
  const Operand<A> a = {first_a, shape.lda, !tn};
  const Operand<B> b = {first_b, shape.ldb, nt};
  const int64_t steps = DivideUp(block.depth, kStep), panel_words = steps * kStepWords;
  const int64_t panels = DivideUp(block.rows, kPanel);
  uint32_t *panel_b = scratch, *panels_a = scratch + panel_words;
  const auto pack_a = [&](int64_t i) PP_LAMBDA {
    return Packer<A>(a, i * kPanel, block.rows - i * kPanel, block.k, block.depth, nt || tn,
                     panels_a + i * panel_words);
  };
  const auto pack_b = [&](int64_t j) PP_LAMBDA {
    return Packer<B>(b, j, block.columns - j, block.k, block.depth, false, panel_b);
  };
  pack_a(0).Pack(steps * kSide);
  pack_b(0).Pack(steps * kSide);

  // While the first panel of B is multiplied, the next one of A is packed; while the last one of A
  // is multiplied, the next one of B is packed. Each step goes where the one just used was: in the
  // nearest cache.
  alignas(64) float sums[2][kPanel * kPanel];
  int sums_now = 0;
  Finisher finisher(block);
  const int64_t calls = steps * kCalls;
  const int64_t finish_rows = DivideUp(kPanel, calls), pack_rows = DivideUp(kSide, kCalls);
  for (int64_t j = 0; j < block.columns; j += kPanel) {
    for (int64_t i = 0; i < panels; ++i) {
      const uint32_t* panel_a = panels_a + i * panel_words;
      float* out = sums[sums_now];
      const uint32_t *left = nt ? panel_b : panel_a, *right = nt ? panel_a : panel_b;
      if (i + 1 == panels) {
        Packer<B> next = pack_b(j + kPanel);
        MultiplyPanels<kParts>(left, right, steps, out, [&](int64_t step) PP_LAMBDA {
          finisher.Finish(finish_rows);
          next.Pack(Least(pack_rows, next.left() - (steps - step) * kSide));
        });
        next.Pack(next.left());
      } else if (j == 0) {
        Packer<A> next = pack_a(i + 1);
        MultiplyPanels<kParts>(left, right, steps, out, [&](int64_t) PP_LAMBDA {
          finisher.Finish(finish_rows);
          next.Pack(pack_rows);
        });
      } else {
        MultiplyPanels<kParts>(left, right, steps, out,
                               [&](int64_t) PP_LAMBDA { finisher.Finish(finish_rows); });
      }
      finisher.Start(out, nt, i * kPanel, j);
      sums_now = 1 - sums_now;
    }
  }
  finisher.Finish(kPanel);
}

struct __attribute__((packed)) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

template <typename A, typename B, typename C>
void Multiply(const MatmulRunArgs& run) {
  // If elements have fewer parts, the same scratch holds more of them.
  constexpr int64_t kMostDepth = kChunk * 3 / kPartsOf<A>;
  const MatmulShape& shape = run.shape;
  const int64_t down = DivideUp(shape.m, kRows);
  const int64_t rows = DivideUp(DivideUp(shape.m, down), kPanel) * kPanel;
  int64_t across = down % run.threads == 0 ? 1 : run.threads;
  if (sizeof(C) < sizeof(float)) across *= DivideUp(shape.n, across * kBlockColumns);
  const int64_t columns = DivideUp(DivideUp(shape.n, across), kPanel) * kPanel;
  const int64_t chunk = DivideUp(DivideUp(shape.k, DivideUp(shape.k, kMostDepth)), kStep) * kStep;
  ParallelFor(down * across, run.threads, [&](int64_t i, int thread) {
    const int64_t row = i / across * rows, column = i % across * columns;
    if (row >= shape.m || column >= shape.n) return;
    float* scratch =
        ScratchOf(thread, ScratchFloats(shape.numbers), run.args.scratch, run.args.helpers);
    const OutputBlock<C> out(
        run, {row, Least(shape.m - row, rows), column, Least(shape.n - column, columns)},
        scratch + kPackedFloats);
    Block block = {.shape = shape,
                   .c = out.c,
                   .ldc = out.ldc,
                   .bias = out.bias,
                   .residual = out.residual,
                   .rows = out.at.rows,
                   .columns = out.at.columns,
                   .k = 0,
                   .depth = 0};
    const A* a = RowOfA<A>(run, row);
    const B* b = ColumnOfB<B>(run, column);
    const TileConfig config;
    _tile_loadconfig(&config);
    for (; block.k < shape.k; block.k += chunk) {
      block.depth = Least(shape.k - block.k, chunk);
      MultiplyChunk(block, a, b, reinterpret_cast<uint32_t*>(scratch));
    }
    _tile_release();
    out.Round();
  });
}

}  // namespace

void MatmulRun(const MatmulRunArgs& run) {
  WithEpilogue(run, [](const MatmulRunArgs& plain) {
    ForNumbers(plain.shape.numbers, [&]<typename A, typename B, typename C>() {
      if constexpr (std::is_same_v<A, Float16>) {
        v4::MatmulRun(plain);  // tiles do not support these types
      } else {
        Multiply<A, B, C>(plain);
      }
    });
  });
}

}  // namespace pp::kernels::PP_ISA
