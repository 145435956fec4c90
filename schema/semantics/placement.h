// Which copies of which stages each device holds: an index, so that what asks for every device
// takes time linear in stages and devices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schema/program.h"

namespace pp {

class Placement {
 public:
  struct Copy {
    int32_t stage, pipe;
  };
  explicit Placement(const Program& program);

  // Ascending, by stage and then by pipe.
  std::span<const Copy> On(int device) const {
    return std::span(copies_).subspan(begin_[device], begin_[device + 1] - begin_[device]);
  }

 private:
  std::vector<Copy> copies_;   // by device
  std::vector<size_t> begin_;  // by device, and the end
};

}  // namespace pp
