// The layouts of a program's stages, for each shape of its micro-batches (schema/model/shapes.h).
// Each is made when it is first asked for, once; stages that are alike share one.
//
// Of a layout only activations, and what is computed with them, depend on the shape.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "schema/program.h"

namespace pp {

class Extents {
 public:
  // REQUIRES: the program has a job, and outlives it.
  explicit Extents(const Program& program);

  int shapes() const { return static_cast<int>(jobs_.size()); }
  const Job& job(int shape) const { return jobs_[shape]; }
  // Whose `stage`, if stages that are alike share it, is another one's. One thread at a time.
  const StageLayout& Of(int stage, int shape) const;

 private:
  std::vector<Job> jobs_;  // by shape
  // By whether it is the first or the last stage, its layers, and the shape.
  mutable std::map<std::tuple<bool, bool, int, int>, StageLayout> layouts_;
};

}  // namespace pp
