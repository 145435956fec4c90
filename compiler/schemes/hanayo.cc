// Hanayo (Liu et al., 2023): waves.
//
// Stages run down the devices and up again, V/2 times, with one copy of the weights. Every device
// takes what is available: the backward of the oldest micro-batch, else the forward of the oldest
// in its furthest stage. A micro-batch enters when every device has room for all of it; a device
// holds at most D micro-batches. With backwards as long as forwards, M a multiple of D and w = V/2
// waves the bubble is (D-1)(F+B)/2w. The same rule works for any stages on any devices
// (--stage-map).
//
//   D = 2, V = 2, M = 2, F and B equally long; 3F0 is the forward of stage 3 on micro-batch 0
//   d0 | 0F0 0F1   . 3F0 3B0 3F1 3B1 0B0   . 0B1
//   d1 |   . 1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1   .
#include <fmt/format.h>

#include <optional>
#include <set>
#include <tuple>

#include "compiler/play/player.h"
#include "compiler/scheme.h"

namespace pp {
namespace {

// In slots of one forward or one backward.
class Waves {
 public:
  Waves(const Shape& shape, Program& program)
      : shape_(shape),
        device_of_(program.pipes[0].device_of),
        last_(shape.stages() - 1),
        ready_(shape.devices),
        running_(shape.devices),
        player_(shape.devices, *this) {
    const Placement placement(program);
    for (int d = 0; d < shape.devices; ++d) {
      rows_.emplace_back(&program, placement, d);
      free_.push_back(shape.devices * Stages(d));
    }
  }

  void Run() {
    Admit(0);
    player_.Run();
  }

  std::optional<double> Choose(int device, double) {
    if (ready_[device].empty()) return std::nullopt;
    const Task task = running_[device] = *ready_[device].begin();
    ready_[device].erase(ready_[device].begin());
    task.backward ? rows_[device].B(task.stage, task.micro)
                  : rows_[device].F(task.stage, task.micro);
    return 1;
  }
  void End(int device, double now) {
    const Task task = running_[device];
    if (!task.backward) {
      const bool last = task.stage == last_;
      return Offer({last, task.micro, last ? last_ : task.stage + 1}, now);
    }
    if (task.stage > 0) Offer({true, task.micro, task.stage - 1}, now);
    if (++free_[device] == Stages(device) && --full_ == 0) Admit(now);
  }

 private:
  // In the order in which a device prefers them.
  struct Task {
    bool backward;
    int micro, stage;
    bool operator<(const Task& b) const {
      return std::tuple(!backward, micro, -stage) < std::tuple(!b.backward, b.micro, -b.stage);
    }
  };

  int64_t Stages(int device) const { return std::ssize(rows_[device].stages()); }
  // Micro-batches enter until a device is full.
  void Admit(double now) {
    for (; full_ == 0 && entered_ < shape_.microbatches; ++entered_) {
      for (int d = 0; d < shape_.devices; ++d) full_ += (free_[d] -= Stages(d)) < Stages(d);
      Offer({false, entered_, 0}, now);
    }
  }
  void Offer(const Task& task, double now) {
    ready_[device_of_[task.stage]].insert(task);
    player_.Wake(now, device_of_[task.stage]);
  }

  const Shape& shape_;
  const std::vector<int32_t>& device_of_;
  const int last_;
  std::vector<Row> rows_;
  std::vector<std::set<Task>> ready_;  // by device
  std::vector<Task> running_;          // by device
  std::vector<int64_t> free_;  // by device: stages of micro-batches that it still has room for
  int full_ = 0;               // devices with room for less than all their stages
  int entered_ = 0;
  Player<Waves> player_;
};

}  // namespace

Status CheckHanayo(const Shape& shape) {
  if (shape.stages_per_device % 2 == 0 || !shape.device_of.empty()) return {};
  return Status::Invalid(fmt::format("--stages-per-device: {} (hanayo: an even number, 2 a wave)",
                                     shape.stages_per_device));
}

void Hanayo(const Shape& shape, Program& program) { Waves(shape, program).Run(); }

}  // namespace pp
