#include "runtime/plan/binding.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "schema/model/workspace.h"
#include "schema/sections.h"
#include "schema/semantics/memory.h"

namespace pp {
namespace {

using Copy = std::pair<int, int>;  // stage, pipe

class Binder {
 public:
  Binder(const Program& program, int device, const Device& memory, BoundList* bound)
      : program_(program),
        device_(device),
        memory_(memory),
        bytes_(program),
        list_(program.lists[device].body),
        bound_(*bound) {
    for (int stage : program.StagesOf(device))
      for (int pipe : program.PipesOf(stage, device))
        copies_[{stage, pipe}] = BindStage(program, device, stage, pipe, memory);
  }

  void Run() {
    for (const Instruction& i : list_) Remember(i);
    CountSteps();
    // Twice: in the steady state a body begins where the previous one has ended.
    for (int round = 0; round < 2; ++round)
      for (size_t index = 0; index < list_.size(); ++index) Visit(list_[index], index);
  }

 private:
  using Name = std::tuple<Kind, int, int>;

  // A micro-batch of the next step has the place of this step's: a body makes each value once.
  int MicroOf(int micro) const { return micro % program_.microbatches; }
  Copy CopyOf(const Instruction& i) const {
    return {i.stage, i.micro < 0 ? std::max<int>(i.pipe, 0) : program_.pipe_of[MicroOf(i.micro)]};
  }

  // Records where the values are that `i` writes.
  void Remember(const Instruction& i) {
    int slot = 0;
    for (const Operand& operand : Info(i.op).writes) {
      const Value v = Resolve(operand, i, program_.stages);
      if (v.kind == Kind::kNone || Info(v.kind).kind_class != KindClass::kValue) continue;
      const int micro = MicroOf(v.micro);
      if (bytes_(v) > 0) places_[{v.kind, v.stage, micro}] = memory_.at(i.offset[slot++]);
      if (bytes_.SecondPiece(i.op, v) > 0)
        places_[{Kind::kInput, v.stage, micro}] = memory_.at(i.offset[slot++]);
    }
  }

  template <typename T = std::byte>
  T* Find(Kind kind, int stage, int micro) const {
    const auto found = places_.find({kind, stage, MicroOf(micro)});
    return found == places_.end() ? nullptr : reinterpret_cast<T*>(found->second);
  }

  void CountSteps() {
    std::map<Copy, int32_t> steps;
    for (size_t index = 0; index < list_.size(); ++index) {
      if (list_[index].stage < 0) continue;
      int32_t& count = steps[CopyOf(list_[index])];
      bound_.steps_before[index] = count;
      count += list_[index].op == Op::kStep;
    }
    for (size_t index = 0; index < list_.size(); ++index)
      if (list_[index].stage >= 0) bound_.steps[index] = steps[CopyOf(list_[index])];
  }

  void Visit(const Instruction& i, size_t index) {
    if (i.stage < 0 || i.op == Op::kWait) return;
    const Lane lane = Info(i.op).lane;
    if (lane == Lane::kSend || lane == Lane::kRecv) {
      const Kind kind = KindOfMessage(i.op);
      bound_.data[index] = Find(kind, i.stage, i.micro);
      bound_.bytes[index] = bytes_({kind, i.stage, i.micro});
      return;
    }
    const auto copy = copies_.find(CopyOf(i));
    PP_CHECK(copy != copies_.end());  // verified
    const int64_t one = LayoutStage(i.stage).weights_bytes;
    bound_.rounded_bytes[index] = LayoutStage(i.stage).rounded_bytes;
    const Region* weights =
        FindRegion(program_.lists[device_], Kind::kWeights, copy->first.first, copy->first.second);
    bound_.weights_bytes[index] = one;
    bound_.versions[index] = one == 0 ? 1 : static_cast<int32_t>(weights->bytes / one);
    if (lane == Lane::kCompute) bound_.calls[index] = Compute(i, copy->second);
  }

  // All that an instruction might use is found under its name. What it does not use may be stale or
  // null.
  StageCall Compute(const Instruction& i, StageCall call) {
    call.op = i.op;
    bool& has_part = has_part_[CopyOf(i)];
    if (i.op == Op::kStep) has_part = false;
    if (i.micro < 0) return call;
    call.micro = MicroOf(i.micro);
    call.shape = program_.ShapeOf(call.micro);
    call.tokens = Find<int32_t>(Kind::kTokens, i.stage, i.micro);
    call.targets = Find<int32_t>(Kind::kTargets, i.stage, i.micro);
    call.act_before = Find<std::byte>(Kind::kAct, i.stage - 1, i.micro);
    call.act = Find<std::byte>(Kind::kAct, i.stage, i.micro);
    call.kept = Find(Kind::kInput, i.stage, i.micro);
    call.stash = Find(Kind::kStash, i.stage, i.micro);
    call.grad = Find<std::byte>(Kind::kGrad, i.stage, i.micro);
    call.grad_before = Find<std::byte>(Kind::kGrad, i.stage - 1, i.micro);
    call.work = Find(Kind::kWork, i.stage, i.micro);
    if (call.loss != nullptr) call.loss += call.micro;
    if (i.op == Op::kBackward || i.op == Op::kBackwardWeight)
      call.accumulate =
          std::exchange(has_part, true) ? kernels::Update::kAdd : kernels::Update::kSet;
    return call;
  }

  const StageLayout& LayoutStage(int stage) {
    const auto [found, is_new] = layouts_.try_emplace(stage);
    if (is_new) found->second = pp::LayoutStage(*program_.job, stage);
    return found->second;
  }

  const Program& program_;
  const int device_;
  const Device& memory_;
  const ValueBytes bytes_;
  const std::vector<Instruction>& list_;
  BoundList& bound_;
  std::map<Copy, StageCall> copies_;
  std::map<Copy, bool> has_part_;
  std::map<Name, std::byte*> places_;
  std::map<int, StageLayout> layouts_;
};

}  // namespace

int64_t BoundList::Updates(int index, const Iteration& iteration) const {
  // Before this one, with STEPs.
  const int64_t bodies = iteration.number + iteration.others - (overlaps ? 2 : 1);
  return bodies < 0 ? 0 : bodies * steps[index] + steps_before[index];
}

int32_t BoundList::SlotOf(int index, const Iteration& iteration, int64_t age) const {
  const int64_t updates = Updates(index, iteration);
  return static_cast<int32_t>((updates - std::min(age, updates)) % versions[index]);
}

void BoundList::UseSlot(int index, int32_t slot, StageCall* call) const {
  call->slot = slot;
  call->weights += slot * weights_bytes[index];
  if (call->rounded != nullptr) call->rounded += slot * rounded_bytes[index];
}

const Region* FindRegion(const DeviceList& list, Kind kind, int stage, int pipe) {
  for (const Region& region : list.regions)
    if (region.kind == kind && (region.stage == stage || region.stage < 0) &&
        (region.pipe == pipe || region.pipe < 0))
      return &region;
  return nullptr;
}

std::byte* BindDocuments(const Program& program, int device, const Device& memory) {
  if (!program.job->documents) return nullptr;
  const Region* workspace = FindRegion(program.lists[device], Kind::kWorkspace, -1, -1);
  PP_CHECK(workspace != nullptr);  // verified
  return memory.at(workspace->offset + WorkspaceOf(*program.job).documents);
}

std::unique_ptr<Kernels> MakeKernels(const Program& program, int device, int threads,
                                     Device* memory) {
  const Region* workspace = FindRegion(program.lists[device], Kind::kWorkspace, -1, -1);
  PP_CHECK(workspace != nullptr);  // verified
  return memory->MakeKernels(
      {.job = &*program.job, .threads = threads, .workspace = memory->at(workspace->offset)});
}

StageCall BindStage(const Program& program, int device, int stage, int pipe, const Device& memory) {
  auto place = [&](Kind kind) -> std::byte* {
    const Region* region = FindRegion(program.lists[device], kind, stage, pipe);
    return region == nullptr ? nullptr : memory.at(region->offset);
  };
  StageCall call;
  call.stage = stage;
  call.pipe = pipe;
  call.weights = call.weights_old = place(Kind::kWeights);
  if (program.job->backend == DeviceKind::kCuda) call.rounded = place(Kind::kRounded);
  call.wgrad = place(Kind::kWgrad);
  call.optimizer = place(Kind::kOptimizer);
  call.scratch = place(Kind::kScratch);
  if (stage == program.stages - 1) call.loss = reinterpret_cast<double*>(place(Kind::kLoss));
  call.norm = reinterpret_cast<double*>(place(Kind::kNorm));
  static_assert(sizeof(kernels::LossScale) == kLossScaleBytes);
  if (call.norm != nullptr && InfoOf(program.job->dtype).scales_loss)
    call.scaling = reinterpret_cast<kernels::LossScale*>(call.norm + NormBlocks(*program.job) + 1);
  return call;
}

BoundList Bind(const Program& program, int device, BodyWalk walk, const Device& memory) {
  const std::vector<Instruction>& list = program.lists[device].body;
  const size_t size = list.size();
  BoundList bound;
  bound.list = list;
  bound.microbatches = program.microbatches;
  bound.overlaps = program.overlaps;
  bound.waits_for = std::move(walk.waits_for);
  bound.freed = std::move(walk.freed);
  bound.documents = BindDocuments(program, device, memory);
  bound.calls.resize(size);
  bound.versions.resize(size, 1);
  bound.weights_bytes.resize(size);
  bound.rounded_bytes.resize(size);
  bound.steps_before.resize(size);
  bound.steps.resize(size);
  bound.data.resize(size);
  bound.bytes.resize(size);
  bound.releases.resize(size);
  Binder(program, device, memory, &bound).Run();
  const bool blocking = program.p2p == P2p::kBlocking;
  int32_t last = -1;  // of the compute lane
  for (int32_t index = 0; index < static_cast<int32_t>(size); ++index)
    if (Info(list[index].op).lane == Lane::kCompute || (IsMessage(list[index]) && blocking))
      bound.compute.push_back(last = index);
  Dependence before{-1, last};
  for (int32_t index = 0; index < static_cast<int32_t>(size); ++index) {
    const Lane lane = Info(list[index].op).lane;
    // A blocking message has its place in the compute lane, like a WAIT for itself.
    const bool blocks = IsMessage(list[index]) && blocking;
    if (blocks) bound.waits_for[index] = before;
    if (lane != Lane::kCompute && bound.waits_for[index].index >= 0)
      bound.releases[bound.waits_for[index].index] = true;
    if (lane == Lane::kCompute || blocks) before = {0, index};
  }
  return bound;
}

}  // namespace pp
