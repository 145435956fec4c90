// GPipe (Huang et al., 2019).
//
// All forwards, then all backwards. All micro-batches are alive at the same time. A device may hold
// any stages; it takes them in the order in which a wave of micro-batches passes.
//
//   d0 | F0 F1  .  .  . B0 -- B1 --
//   d1 |  . F0 F1 B0 -- B1 --  .  .
#include "compiler/scheme.h"

namespace pp {

void GPipe(const Shape& shape, int, Row& row) {
  const int stages = shape.stages(), waves = shape.microbatches + stages - 1;
  for (int wave = 0; wave < waves; ++wave)
    for (int s : row.stages())
      if (wave >= s && wave - s < shape.microbatches) row.F(s);
  for (int wave = 0; wave < waves; ++wave)
    for (auto s = row.stages().rbegin(); s != row.stages().rend(); ++s)
      if (const int micro = wave - (stages - 1 - *s); micro >= 0 && micro < shape.microbatches)
        row.B(*s);
}

}  // namespace pp
