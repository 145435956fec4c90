// 1F1B (PipeDream-Flush; Narayanan et al., 2021, "Efficient Large-Scale Language Model
// Training on GPU Clusters", section 2.2).
//
// A device runs ahead only as far as the later devices need, then alternates one forward with one
// backward. As fast as GPipe with at most D activations alive.
//
//   d0 | F0 F1  .  . B0 -- F2 B1 -- F3 B2 --  . B3 --
//   d1 |  . F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 --  .  .
#include <algorithm>

#include "compiler/scheme.h"

namespace pp {

void OneFOneB(const Shape& shape, int device, Row& row) {
  const int ahead = std::min(shape.devices - 1 - device, shape.microbatches);
  for (int i = 0; i < ahead; ++i) row.F(device);
  for (int i = ahead; i < shape.microbatches; ++i) row.F(device), row.B(device);
  for (int i = 0; i < ahead; ++i) row.B(device);
}

}  // namespace pp
