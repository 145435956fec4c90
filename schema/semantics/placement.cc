#include "schema/semantics/placement.h"

namespace pp {

Placement::Placement(const Program& program) : begin_(program.devices + 1, 0) {
  for (const Pipe& pipe : program.pipes)
    for (int32_t device : pipe.device_of) ++begin_[device + 1];
  for (int d = 0; d < program.devices; ++d) begin_[d + 1] += begin_[d];
  copies_.resize(begin_.back());
  std::vector<size_t> next(begin_.begin(), begin_.end() - 1);
  for (int32_t stage = 0; stage < program.stages; ++stage)
    for (size_t pipe = 0; pipe < program.pipes.size(); ++pipe)
      copies_[next[program.pipes[pipe].device_of[stage]]++] = {stage, static_cast<int32_t>(pipe)};
}

}  // namespace pp
