#include "runtime/plan/binding.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace pp {
namespace {

class Binder {
 public:
  Binder(const Program& program, int device, const Arena& arena)
      : program_(program), arena_(arena), bytes_(program) {
    for (int stage : program.StagesOf(device))
      stages_[stage] = BindStage(program, device, stage, arena);
  }

  void Visit(const Instruction& i, int index, BoundList* bound) {
    Remember(i);
    switch (Info(i.op).lane) {
      case Lane::kCompute:
        if (i.stage >= 0 && i.op != Op::kWait) bound->addresses[index] = Compute(i);
        break;
      case Lane::kSend:
      case Lane::kRecv: {
        const bool act = i.op == Op::kSendAct || i.op == Op::kRecvAct;
        const Kind kind = act ? Kind::kAct : Kind::kGrad;
        bound->data[index] = Find(kind, i.stage, i.micro);
        bound->bytes[index] = bytes_(kind, i.stage);
        break;
      }
      case Lane::kReduce:
        break;
    }
  }

 private:
  using Name = std::tuple<Kind, int, int>;

  // Where the values are that `i` writes.
  void Remember(const Instruction& i) {
    int slot = 0;
    for (const Operand& operand : Info(i.op).writes) {
      const Value v = Resolve(operand, i, program_.stages);
      if (v.kind == Kind::kNone || Info(v.kind).kind_class != KindClass::kValue) continue;
      if (bytes_(v.kind, v.stage) == 0) continue;
      places_[{v.kind, v.stage, v.micro}] = arena_.at(i.offset[slot++]);
    }
  }

  std::byte* Find(Kind kind, int stage, int micro) const {
    const auto found = places_.find({kind, stage, micro});
    return found == places_.end() ? nullptr : found->second;
  }

  // A name is written once in a list, so all that an instruction might use is found under
  // its name. What it does not use may be stale or null.
  Addresses Compute(const Instruction& i) {
    Addresses at = stages_.at(i.stage);
    if (i.micro < 0) return at;
    at.micro = i.micro;
    at.tokens = Find(Kind::kTokens, i.stage, i.micro);
    at.targets = Find(Kind::kTargets, i.stage, i.micro);
    at.act_before = Find(Kind::kAct, i.stage - 1, i.micro);
    at.act = Find(Kind::kAct, i.stage, i.micro);
    at.stash = Find(Kind::kStash, i.stage, i.micro);
    at.grad = Find(Kind::kGrad, i.stage, i.micro);
    at.grad_before = Find(Kind::kGrad, i.stage - 1, i.micro);
    at.work = Find(Kind::kWork, i.stage, i.micro);
    if (at.loss != nullptr) at.loss += i.micro;
    if (i.op == Op::kBackward || i.op == Op::kBackwardWeight)
      at.first = !std::exchange(has_part_[i.stage], true);
    return at;
  }

  const Program& program_;
  const Arena& arena_;
  const ValueBytes bytes_;
  std::map<int, Addresses> stages_;
  std::map<int, bool> has_part_;
  std::map<Name, std::byte*> places_;
};

}  // namespace

const Region* FindRegion(const DeviceList& list, Kind kind, int stage) {
  for (const Region& region : list.regions)
    if (region.kind == kind && (region.stage == stage || region.stage < 0)) return &region;
  return nullptr;
}

Addresses BindStage(const Program& program, int device, int stage, const Arena& arena) {
  auto place = [&](Kind kind) -> std::byte* {
    const Region* region = FindRegion(program.lists[device], kind, stage);
    return region == nullptr ? nullptr : arena.at(region->offset);
  };
  Addresses at;
  at.stage = stage;
  at.weights = place(Kind::kWeights);
  at.wgrad = place(Kind::kWgrad);
  at.optimizer = place(Kind::kOptimizer);
  at.scratch = place(Kind::kScratch);
  if (stage == program.stages - 1) at.loss = reinterpret_cast<double*>(place(Kind::kLoss));
  at.norm = reinterpret_cast<double*>(place(Kind::kNorm));
  if (at.norm != nullptr) at.norm += LayoutStage(*program.job, stage).first_norm_block;
  return at;
}

BoundList Bind(const Program& program, int device, std::span<const Instruction> list,
               WaitsFor waits_for, const Arena& arena) {
  const size_t size = list.size();
  BoundList bound;
  bound.list = list;
  bound.waits_for = std::move(waits_for);
  bound.addresses.resize(size);
  bound.data.resize(size);
  bound.bytes.resize(size);
  bound.releases.resize(size);
  Binder binder(program, device, arena);
  const bool blocking = program.p2p == P2p::kBlocking;
  for (int index = 0; index < static_cast<int>(size); ++index) {
    binder.Visit(list[index], index, &bound);
    const Lane lane = Info(list[index].op).lane;
    const bool message = lane == Lane::kSend || lane == Lane::kRecv;
    // A blocking message has its place in the compute lane, like a WAIT for itself.
    if (message && blocking)
      bound.waits_for[index] = bound.compute.empty() ? -1 : bound.compute.back();
    if (lane != Lane::kCompute && bound.waits_for[index] >= 0)
      bound.releases[bound.waits_for[index]] = true;
    if (lane == Lane::kCompute || (message && blocking)) bound.compute.push_back(index);
  }
  return bound;
}

}  // namespace pp
