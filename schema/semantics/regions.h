// Memory that a device holds from the first step to the last: what plan-memory lays out and
// the verifier asks for.
#pragma once

#include <optional>
#include <vector>

#include "schema/program.h"
#include "schema/semantics/extents.h"
#include "schema/semantics/placement.h"

namespace pp {

// Weights, their gradients and moments, and on a GPU what its products read of the weights, for
// each stage that the device holds, then what its stages share; one after the other from offset 0,
// at multiples of kAlign. None without a model.
//
// Loss: one double for each micro-batch of the routine that has the most, where the last stage is.
// Exchange: for the collective of n members that needs the most, n - 1 pieces (MostExchangePiece),
// of which each receives another member's part; a collective cuts the region into n - 1 equal
// pieces.
class Regions {
 public:
  // REQUIRES: `program` outlives it.
  explicit Regions(const Program& program);
  std::vector<Region> On(int device) const;

 private:
  const Program& program_;
  const Placement placement_;
  std::optional<Extents> extents_;  // of a job
  int64_t norm_bytes_ = 0;          // of the norm's blocks, in all stages
  int64_t tied_members_ = 0;  // ranks that hold an end of the model: those REDUCE_tied sums over
};

// Makes a plan that counts one kind of device's memory one for another kind: each device gets the
// regions that this kind needs, where they were if they fit there, or else appended to the arena.
// Returns the bytes appended, by device. REQUIRES: it has a job and its regions.
std::vector<int64_t> AddRegions(DeviceKind backend, Program* program);

}  // namespace pp
