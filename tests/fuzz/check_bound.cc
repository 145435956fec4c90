#include "tests/fuzz/check_bound.h"

#include <algorithm>
#include <map>

#include "runtime/plan/bind_collective.h"
#include "schema/semantics/memory.h"

namespace pp {
namespace {

class Checker {
 public:
  Checker(const Program& program, const BoundList& bound, const ExactDevice& memory)
      : program_(program),
        bound_(bound),
        memory_(memory),
        bytes_(program),
        norm_bytes_((NormBlocks(*program.job) + 1) * static_cast<int64_t>(sizeof(double))) {}

  void Run() {
    for (size_t index = 0; index < bound_.list.size(); ++index) {
      const Instruction& i = bound_.list[index];
      const Lane lane = Info(i.op).lane;
      if (lane == Lane::kSend || lane == Lane::kRecv) {
        PP_CHECK(bound_.bytes[index] == bytes_({KindOfMessage(i.op), i.stage, i.micro}));
        PP_CHECK(bound_.bytes[index] > 0 && memory_.Has(bound_.data[index], bound_.bytes[index]));
      } else if (lane == Lane::kCompute && i.op != Op::kWait && i.stage >= 0) {
        CheckVersions(static_cast<int>(index));
        CheckStates(bound_.calls[index], static_cast<int>(index));
        CheckValues(bound_.calls[index]);
        CheckOperands(i, bound_.calls[index]);
      }
    }
    for (const Freed& freed : bound_.freed)
      PP_CHECK(memory_.Has(memory_.at(freed.offset), freed.bytes));
  }

 private:
  const StageLayout& Layout(int stage) {
    const auto [found, is_new] = layouts_.try_emplace(stage);
    if (is_new) found->second = LayoutStage(*program_.job, stage);
    return found->second;
  }

  void CheckVersions(int index) const {
    const int32_t versions = bound_.versions[index];
    PP_CHECK(versions >= 1);
    for (int64_t number = 1; number < 5; ++number)
      for (const int64_t age : {0, std::max<int>(0, bound_.list[index].version)}) {
        const int32_t slot = bound_.SlotOf(index, {.number = number}, age);
        PP_CHECK(slot >= 0 && slot < versions);
      }
  }

  void May(const void* at, int64_t bytes) const {
    PP_CHECK(at == nullptr || memory_.Has(at, bytes));
  }

  void CheckStates(const StageCall& call, int index) {
    const StageLayout& layout = Layout(call.stage);
    const int64_t versions = bound_.versions[index];
    May(call.weights, versions * layout.weights_bytes);
    May(call.weights_old, versions * layout.weights_bytes);
    May(call.rounded, versions * layout.rounded_bytes);
    May(call.wgrad, layout.wgrad_bytes);
    if (program_.zero == 0) May(call.optimizer, layout.optimizer_bytes);
    May(call.scratch,
        call.op == Op::kForwardDrop ? layout.drop_scratch_bytes : layout.scratch_bytes);
    May(call.norm, norm_bytes_);
    May(call.scaling, kLossScaleBytes);
    PP_CHECK(layout.weights_bytes == 0 || call.weights);
    PP_CHECK(layout.wgrad_bytes == 0 || call.wgrad);
    // With ZeRO-1 a copy may have no shard.
    PP_CHECK(layout.optimizer_bytes == 0 || program_.zero == 1 || call.optimizer);
    PP_CHECK(layout.scratch_bytes == 0 || call.scratch);
    PP_CHECK(!layout.last || call.loss);
    PP_CHECK(call.op != Op::kStep || !program_.clip || program_.MakesVersions() || call.norm);
  }

  void CheckValues(const StageCall& call) const {
    May(call.tokens, bytes_({Kind::kTokens, 0, call.micro}));
    May(call.targets, bytes_({Kind::kTargets, program_.stages - 1, call.micro}));
    May(call.act, bytes_({Kind::kAct, call.stage, call.micro}));
    May(call.grad, bytes_({Kind::kGrad, call.stage, call.micro}));
    if (call.stage > 0) May(call.act_before, bytes_({Kind::kAct, call.stage - 1, call.micro}));
    if (call.stage > 0) May(call.grad_before, bytes_({Kind::kGrad, call.stage - 1, call.micro}));
    May(call.loss, sizeof(double));
    May(call.kept, bytes_({Kind::kInput, call.stage, call.micro}));
    May(call.stash, bytes_({Kind::kStash, call.stage, call.micro}));
    May(call.work, bytes_({Kind::kWork, call.stage, call.micro}));
  }

  void CheckOperands(const Instruction& i, const StageCall& call) const {
    const OpInfo& op = Info(i.op);
    for (const auto operands : {op.reads, op.writes})
      for (const Operand& operand : operands) {
        const Value v = Resolve(operand, i, program_.stages);
        if (v.kind == Kind::kNone || v.micro < 0 || Info(v.kind).kind_class != KindClass::kValue ||
            bytes_(v) == 0)
          continue;
        PP_CHECK(AddressOf(v, call) != nullptr);
      }
  }

  static const void* AddressOf(const Value& v, const StageCall& call) {
    switch (v.kind) {
      case Kind::kTokens:
        return call.tokens;
      case Kind::kTargets:
        return call.targets;
      case Kind::kAct:
        return v.stage == call.stage ? call.act : call.act_before;
      case Kind::kGrad:
        return v.stage == call.stage ? call.grad : call.grad_before;
      case Kind::kStash:
        return call.stash;
      case Kind::kInput:
        return call.kept;
      default:
        return call.work;
    }
  }

  const Program& program_;
  const BoundList& bound_;
  const ExactDevice& memory_;
  const ValueBytes bytes_;
  const int64_t norm_bytes_;
  std::map<int, StageLayout> layouts_;
};

}  // namespace

void CheckBound(const Program& program, int device, const BoundList& bound,
                const ExactDevice& memory) {
  PP_CHECK(bound.list.size() == program.lists[device].body.size());
  Checker(program, bound, memory).Run();
}

void CheckCollectives(const Program& program, const Topology& topology, int rank,
                      const ExactDevice& memory) {
  for (const Instruction& i : program.lists[topology.PlaceOf(rank).device].body) {
    if (Info(i.op).lane != Lane::kReduce) continue;
    const CollectiveArgs args = BindCollective(program, topology, rank, i, memory);
    PP_CHECK(args.shards.size() == args.group.size());
    const auto me = std::find(args.group.begin(), args.group.end(), rank) - args.group.begin();
    PP_CHECK(me < static_cast<int64_t>(args.group.size()));
    for (const std::vector<ByteRange>& shard : args.shards)
      for (const ByteRange& range : shard) {
        PP_CHECK(range.begin >= 0);
        PP_CHECK(memory.Has(args.value, range.begin + range.bytes));
        if (args.second != nullptr) PP_CHECK(memory.Has(args.second, range.begin + range.bytes));
      }
    int64_t piece = 0;
    for (const ByteRange& range : args.shards[me]) piece = std::max(piece, range.bytes);
    if (args.kind != CollectiveKind::kAllGather && args.group.size() > 1)
      PP_CHECK(memory.Has(args.exchange, static_cast<int64_t>(args.group.size() - 1) *
                                             std::min(args.piece, piece)));
  }
}

}  // namespace pp
