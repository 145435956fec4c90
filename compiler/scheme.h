// A pipeline scheme states, for each device, the order of its forwards and backwards,
// and nothing else: no times, no messages, no memory. Those follow in passes.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/semantics/placement.h"

namespace pp {

// Sizes as a user gives them; a scheme's `fill` gets only those that its `check` has accepted.
struct Shape {
  int devices = 1;                  // D
  int microbatches = 1;             // M
  int stages_per_device = 1;        // V, for each pipe; 0 for BuildSchedule: the default
  int group_size = 0;               // N of interleaved; 0: D
  int pipe_pairs = 1;               // f of chimera
  std::vector<int> device_of = {};  // stage -> device; empty: the scheme's own map
  int stages() const {
    return device_of.empty() ? devices * stages_per_device : static_cast<int>(device_of.size());
  }
};

// The list of one device as a scheme writes it. F, B, I and W without a micro-batch take the next
// one of the pipe that places the stage here. The returned instruction may be given a version.
class Row {
 public:
  // REQUIRES: pipes and pipe_of of `program` are set, and `placement` is theirs.
  Row(Program* program, const Placement& placement, int device);

  Instruction& F(int stage) { return F(stage, Next(forward_, stage)); }
  Instruction& B(int stage) { return B(stage, Next(backward_, stage)); }
  Instruction& I(int stage) { return I(stage, Next(backward_, stage)); }
  Instruction& F(int stage, int micro) { return Add(Op::kForward, stage, micro); }
  Instruction& B(int stage, int micro) { return Add(Op::kBackward, stage, micro); }
  // The input half of a backward; its weight half goes to the end of a queue.
  Instruction& I(int stage, int micro);
  // The weight half that has waited longest, of `stage` or of any stage.
  void W(int stage);
  void W();
  bool HasW() const { return !weights_.empty(); }
  // One forward and one backward, run as one (DualPipe).
  void FB(int forward, int backward);
  // From here on the reduction of the stage's gradients can start: after the wait for the gradient
  // that the next backward, of (next_stage, micro), takes.
  void Reduce(int stage, int next_stage, int micro);
  // An optimizer step that the other micro-batches do not wait for.
  void Step(int stage);

  // The stages that the device holds, ascending.
  const std::vector<int>& stages() const { return stages_; }

 private:
  Instruction& Add(Op op, int stage, int micro);
  int Next(std::vector<int>& counters, int stage);

  const Program& program_;
  const int device_;
  std::vector<Instruction>& list_;
  std::vector<int> stages_;                  // what follows is in their order
  std::vector<std::vector<int>> micros_;     // those of the stage's pipe
  std::vector<int> forward_, backward_;      // how many the stage has had
  std::deque<std::pair<int, int>> weights_;  // stage, micro: input halves without weight half
};

// How stages are placed on devices.
enum class StageMap {
  kLoop,   // 0 1 2 3 0 1 2 3
  kSnake,  // 0 1 2 3 3 2 1 0
  kBoth,   // two pipes: 0 1 2 3 and 3 2 1 0
};

// A row of the table of schemes.
struct Scheme {
  std::string_view name;
  std::string_view summary;
  std::string_view needs;        // sizes for which `check` passes, for people; empty: all
  int stages_per_device;         // default V
  enum { kFixed, kFree } parts;  // whether V may be changed
  StageMap map;
  enum { kNone, kGroups, kPipePairs, kAnyMap } option;  // which further option it takes
  // Which sizes are legal: the error names the option, its value and what would be right.
  Status (*check)(const Shape&);
  // The list of one device, in which no LOAD need be; null where one cannot be stated alone.
  void (*fill)(const Shape&, int device, Row&);
  // What takes the lists of all devices.
  void (*finish)(const Shape&, Program&);
};

std::span<const Scheme> Schemes();

// Each in its file under schemes/.
void GPipe(const Shape& shape, int device, Row& row);
void OneFOneB(const Shape& shape, int device, Row& row);
void Interleaved(const Shape& shape, int device, Row& row);
Status CheckInterleaved(const Shape& shape);
void Chimera(const Shape& shape, int device, Row& row);
Status CheckChimera(const Shape& shape);
void FoldAiao(const Shape& shape, int device, Row& row);
Status CheckFoldAiao(const Shape& shape);
void FoldFifo(const Shape& shape, int device, Row& row);
Status CheckFoldFifo(const Shape& shape);
void PipeDream(const Shape& shape, int device, Row& row);
void PipeDream2BW(const Shape& shape, int device, Row& row);
Status CheckPipeDream(const Shape& shape);
void ZbH1(const Shape& shape, int device, Row& row);
void ZbH2(const Shape& shape, int device, Row& row);
Status CheckZbH2(const Shape& shape);
void ZbV(const Shape& shape, int device, Row& row);
void VHalf(const Shape& shape, int device, Row& row);
void VHalfWeights(const Shape& shape, Program& program);
void VMin(const Shape& shape, int device, Row& row);
void VMinWeights(const Shape& shape, Program& program);
void Hanayo(const Shape& shape, Program& program);
Status CheckHanayo(const Shape& shape);
void DualPipe(const Shape& shape, int device, Row& row);
Status CheckDualPipe(const Shape& shape);
void DualPipeV(const Shape& shape, int device, Row& row);
Status CheckDualPipeV(const Shape& shape);

// Adds LOAD before the forwards that need one.
void AddLoads(Program& program);

// The compute-only program of a scheme. Errors name the option.
Result<Program> BuildSchedule(const std::string& scheme, Shape shape);
// The lists of a scheme that states each alone (`fill`), without LOADs, one after the other in one
// piece of memory: enough for what asks for their order. REQUIRES: the shape has no stage map.
Status VisitLists(const Scheme& scheme, Shape shape,
                  const std::function<void(int device, const std::vector<Instruction>&)>& visit);
// The same as BuildSchedule's with empty lists: which stage is on which device.
Result<Program> BuildPlacement(const std::string& scheme, Shape shape);

}  // namespace pp
