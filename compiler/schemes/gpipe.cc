// GPipe (Huang et al., 2019).
//
// Every device runs all forwards, then all backwards, each in the order of the
// micro-batches. Simple, and M activations alive on every device.
//
//   d0 | F0 F1 F2 F3  .  .  . B0 -- B1 -- B2 -- B3 --
//   d1 |  . F0 F1 F2 F3 B0 -- B1 -- B2 -- B3 --  .  .
#include "compiler/scheme.h"

namespace pp {

void GPipe(const Shape& shape, int device, Row& row) {
  for (int i = 0; i < shape.microbatches; ++i) row.F(device);
  for (int i = 0; i < shape.microbatches; ++i) row.B(device);
}

}  // namespace pp
