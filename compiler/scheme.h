// A pipeline scheme states, for each device, the order of its forwards and backwards,
// and nothing else: no times, no messages, no memory. Those follow in passes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schema/program.h"
#include "schema/status.h"

namespace pp {

// REQUIRES: a scheme's `check` has accepted it.
struct Shape {
  int devices = 1;            // D
  int microbatches = 1;       // M
  int stages_per_device = 1;  // V, for each pipe
  int group_size = 0;         // N of interleaved; 0: D
  int stages() const { return devices * stages_per_device; }
};

// The list of one device as a scheme writes it. F and B take the stage's micro-batches
// in order; LOAD comes by itself before the forward that needs it.
class Row {
 public:
  Row(const Shape& shape, std::vector<Instruction>* list)
      : stages_(shape.stages()), list_(list), forward_(stages_), backward_(stages_) {}

  void F(int stage) { F(stage, forward_[stage]++); }
  void B(int stage) { B(stage, backward_[stage]++); }
  void F(int stage, int micro) {
    if (stage == 0 || stage == stages_ - 1) Add(Op::kLoad, stage, micro);
    Add(Op::kForward, stage, micro);
  }
  void B(int stage, int micro) { Add(Op::kBackward, stage, micro); }

 private:
  void Add(Op op, int stage, int micro) {
    list_->push_back({.op = op, .stage = stage, .micro = micro});
  }
  const int stages_;
  std::vector<Instruction>* list_;
  std::vector<int> forward_, backward_;  // the next micro-batch of each stage
};

// A row of the table of schemes.
struct Scheme {
  std::string_view name;
  std::string_view summary;
  int stages_per_device;  // default V
  bool fixed;             // whether that is the only one
  bool has_groups;        // whether --group-size means something
  // What sizes are legal: the error names the option, its value and what would be right.
  Status (*check)(const Shape&);
  void (*fill)(const Shape&, int device, Row&);
};

std::span<const Scheme> Schemes();

// Each in its file under schemes/.
void GPipe(const Shape& shape, int device, Row& row);
void OneFOneB(const Shape& shape, int device, Row& row);
void Interleaved(const Shape& shape, int device, Row& row);
Status CheckInterleaved(const Shape& shape);

// The compute-only program of a scheme. Errors name the option.
Result<Program> BuildSchedule(const std::string& scheme, Shape shape);

}  // namespace pp
