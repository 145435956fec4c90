#include "compiler/passes/place_messages.h"

namespace pp {

std::vector<Instruction> Insertions::Merge() const {
  // begin[p]: where what is added at p, and then list_[p], is placed.
  std::vector<int> begin(list_.size() + 2, 0);
  for (const Added& added : added_) ++begin[added.position + 1];
  for (size_t p = 1; p < begin.size(); ++p) begin[p] += begin[p - 1] + (p <= list_.size());
  std::vector<Instruction> merged(list_.size() + added_.size());
  for (size_t p = 0; p < list_.size(); ++p) merged[begin[p + 1] - 1] = list_[p];
  for (const Added& added : added_) merged[begin[added.position]++] = added.instruction;
  return merged;
}

Instruction Send(const Message& m) {
  return {.op = m.value.kind == Kind::kAct ? Op::kSendAct : Op::kSendGrad,
          .stage = m.value.stage,
          .micro = m.value.micro,
          .peer = m.to};
}
Instruction Receive(const Message& m) {
  return {.op = m.value.kind == Kind::kAct ? Op::kRecvAct : Op::kRecvGrad,
          .stage = m.value.stage,
          .micro = m.value.micro,
          .peer = m.from};
}
Instruction Wait(const Message& m) {
  return {.op = Op::kWait, .value = m.value.kind, .stage = m.value.stage, .micro = m.value.micro};
}
Instruction WaitSent(const Message& m) {
  Instruction i = Wait(m);
  i.sent = true;
  return i;
}

std::vector<Insertions> StartInsertions(const Program& program) {
  std::vector<Insertions> insertions;
  for (const DeviceList& list : program.lists) insertions.emplace_back(list.body);
  return insertions;
}

}  // namespace pp
