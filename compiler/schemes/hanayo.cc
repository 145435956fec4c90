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

#include <queue>
#include <set>
#include <tuple>

#include "compiler/scheme.h"

namespace pp {
namespace {

// Simulates the rule in slots of one forward or one backward.
class Player {
 public:
  Player(const Shape& shape, std::span<Row> rows)
      : shape_(shape),
        rows_(rows),
        last_(shape.stages() - 1),
        ready_(rows.size()),
        room_(rows.size()) {
    device_of_.resize(shape.stages());
    for (size_t d = 0; d < rows.size(); ++d) {
      for (int s : rows[d].stages()) device_of_[s] = static_cast<int>(d);
      room_[d] = shape.devices * static_cast<int64_t>(rows[d].stages().size());
    }
  }

  void Run() {
    Admit();
    while (left_ > 0) {
      std::vector<Task> done;
      for (size_t d = 0; d < rows_.size(); ++d) {
        if (ready_[d].empty()) continue;
        done.push_back(*ready_[d].begin());
        ready_[d].erase(ready_[d].begin());
        const Task& task = done.back();
        task.backward ? rows_[d].B(task.stage, task.micro) : rows_[d].F(task.stage, task.micro);
      }
      for (const Task& task : done) Finish(task);
    }
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
  static Task Forward(int stage, int micro) { return {false, micro, stage}; }
  static Task Backward(int stage, int micro) { return {true, micro, stage}; }

  void Admit() {
    auto full = [&](size_t d) { return room_[d] < static_cast<int64_t>(rows_[d].stages().size()); };
    while (entered_ < shape_.microbatches) {
      for (size_t d = 0; d < rows_.size(); ++d)
        if (full(d)) return;
      for (size_t d = 0; d < rows_.size(); ++d) room_[d] -= rows_[d].stages().size();
      Offer(Forward(0, entered_++));
    }
  }

  void Offer(const Task& task) {
    ready_[device_of_[task.stage]].insert(task);
    ++left_;
  }
  void Finish(const Task& task) {
    --left_;
    if (!task.backward) {
      Offer(task.stage < last_ ? Forward(task.stage + 1, task.micro) : Backward(last_, task.micro));
      return;
    }
    ++room_[device_of_[task.stage]];
    if (task.stage > 0) Offer(Backward(task.stage - 1, task.micro));
    Admit();
  }

  const Shape& shape_;
  std::span<Row> rows_;
  const int last_;
  std::vector<int> device_of_;
  std::vector<std::set<Task>> ready_;  // by device
  std::vector<int64_t> room_;          // by device: stages of micro-batches yet to enter
  int entered_ = 0, left_ = 0;
};

}  // namespace

Status CheckHanayo(const Shape& shape) {
  if (shape.stages_per_device % 2 == 0 || !shape.device_of.empty()) return {};
  return Status::Invalid(fmt::format("--stages-per-device: {} (hanayo: an even number, 2 a wave)",
                                     shape.stages_per_device));
}

void Hanayo(const Shape& shape, std::span<Row> rows) { Player(shape, rows).Run(); }

}  // namespace pp
