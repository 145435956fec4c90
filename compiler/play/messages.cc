#include "compiler/play/messages.h"

namespace pp {
namespace {

// Calls visit(instruction, first, last) for each instruction and the list indices of what runs as
// one with it: two that overlap, or only itself.
template <typename Visit>
void ForEachUnit(const std::vector<Instruction>& list, Visit visit) {
  const int size = static_cast<int>(list.size());
  for (int first = 0, last = 0; first < size; first = last + 1) {
    last = list[first].overlap && first + 1 < size ? first + 1 : first;
    for (int i = first; i <= last; ++i) visit(list[i], first, last);
  }
}

// Where each device uses the acts and grads that other devices produce: (kind, stage, micro) ->
// list index.
class Consumers {
 public:
  explicit Consumers(const Program& program)
      : stages_(program.stages), micros_(program.microbatches) {
    at_.assign(size_t{2} * stages_ * micros_, -1);
    for (int d = 0; d < program.devices; ++d) {
      ForEachUnit(program.lists[d].body,
                  [&](const Instruction& i, int first, int) { AddUses(i, first); });
    }
  }
  static bool IsMessage(const Value& v) { return v.kind == Kind::kAct || v.kind == Kind::kGrad; }
  int& At(const Value& v) {
    return at_[(static_cast<size_t>(v.kind == Kind::kGrad) * stages_ + v.stage) * micros_ +
               v.micro];
  }

 private:
  void AddUses(const Instruction& i, int index) {
    if (i.op == Op::kWait) return Use({i.value, i.stage, i.micro}, index);
    for (const Operand& operand : Info(i.op).reads) Use(Resolve(operand, i, stages_), index);
  }
  void Use(const Value& v, int index) {
    if (IsMessage(v) && At(v) < 0) At(v) = index;
  }

  const size_t stages_, micros_;
  std::vector<int> at_;
};

}  // namespace

std::vector<Message> FindMessages(const Program& program) {
  Consumers consumers(program);
  std::vector<Message> messages;
  size_t most = 0;  // each instruction makes at most one
  for (const DeviceList& list : program.lists) most += list.body.size();
  messages.reserve(most);
  for (int d = 0; d < program.devices; ++d) {
    ForEachUnit(program.lists[d].body, [&](const Instruction& i, int, int producer) {
      for (const Operand& operand : Info(i.op).writes) {
        const Value v = Resolve(operand, i, program.stages);
        if (!Consumers::IsMessage(v)) continue;
        const int user = program.EndsOf(v).user;
        if (user != d) messages.push_back({v, d, user, producer, consumers.At(v)});
      }
    });
  }
  return messages;
}

Inbox::Inbox(const Program& program, const std::vector<Message>& messages)
    : messages_(messages), next_(program.devices, messages.size()) {
  for (const DeviceList& list : program.lists) uses_.emplace_back(list.body.size());
  for (size_t m = messages.size(); m-- > 0;) {
    const Message& message = messages[m];
    if (message.consumer >= 0) ++uses_[message.to][message.consumer].missing;
    next_[message.from] = m;
  }
}

}  // namespace pp
