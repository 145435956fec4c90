// Writes torch-csv: one row per device, one cell per action, no idle cells.
#include <fmt/format.h>

#include <algorithm>

#include "compiler/interop.h"
#include "schema/text.h"

namespace pp {
namespace {

// "2SEND_F0", or empty for what is not a cell. PyTorch numbers a message by the stage that sends or
// receives it, we by the stage whose output it is (act) or belongs to (grad).
std::string MessageCell(const Instruction& i, int micro, P2p p2p) {
  const bool sends = Info(i.op).lane == Lane::kSend, waits = i.op == Op::kWait;
  if (waits ? !i.sent : !IsMessage(i)) return "";
  const bool act = (waits ? i.value : KindOfMessage(i.op)) == Kind::kAct;
  const bool next = act == (Info(i.op).lane == Lane::kRecv);
  const std::string name =
      fmt::format("{}_{}{}", sends || waits ? "SEND" : "RECV", act ? 'F' : 'B', micro);
  const int stage = i.stage + (next ? 1 : 0);
  if (waits) return fmt::format("{}WAIT_{}", stage, name);
  const std::string cell = fmt::format("{}{}", stage, name);
  // A rendezvous: the device goes on when the other one has it.
  return sends && p2p == P2p::kBlocking ? fmt::format("{},{}WAIT_{}", cell, stage, name) : cell;
}

class Writer {
 public:
  Writer(const Program& program, TorchMessages messages)
      : program_(program), messages_(messages), order_(LossOrder(program)) {}

  Result<std::string> Row(int device) const {
    std::string row;
    const Instruction* first = nullptr;  // of two that overlap
    const auto& list = program_.lists[device].body;
    for (size_t index = 0; index < list.size(); ++index) {
      const Instruction& i = list[index];
      if (i.op == Op::kForwardDrop || i.op == Op::kRecompute)
        return Status::Invalid(fmt::format(
            "device {}, '{}' (instruction {}): PyTorch's schedules have no recomputation", device,
            ToText(i), index));
      if (messages_ == TorchMessages::kFull)
        if (const std::string cell = MessageCell(i, Number(i), program_.p2p); !cell.empty())
          row += (row.empty() ? "" : ",") + cell;
      const char letter = Info(i.op).letter;
      if (letter == 0) continue;
      if (i.version >= 0)
        return Status::Invalid(
            fmt::format("device {}, '{}' (instruction {}): PyTorch has one version of the weights",
                        device, ToText(i), index));
      const bool second = i.overlap && first != nullptr;
      if (!row.empty()) row += second ? ';' : ',';
      if (i.overlap && !second) row += '(';
      row += fmt::format("{}{}{}", i.stage, letter, Number(i));
      if (second) row += ")OVERLAP_F_B";
      first = i.overlap && !second ? &i : nullptr;
    }
    if (messages_ == TorchMessages::kFull)
      for (const int stage : program_.StagesOf(device))
        row += fmt::format(",{0}REDUCE_GRAD,{0}WAIT_REDUCE_GRAD", stage);
    return row;
  }

 private:
  int Number(const Instruction& i) const { return i.micro < 0 ? i.micro : order_[i.micro]; }

  const Program& program_;
  const TorchMessages messages_;
  const std::vector<int32_t> order_;
};

}  // namespace

std::vector<int32_t> LossOrder(const Program& program) {
  std::vector<int32_t> order(program.microbatches, -1);
  int32_t next = 0;
  for (const DeviceList& list : program.lists)
    for (const Instruction& i : list.body)
      if (i.stage == program.stages - 1 && Info(i.op).part == Part::kForward && order[i.micro] < 0)
        order[i.micro] = next++;
  for (int32_t& number : order)
    if (number < 0) number = next++;
  return order;
}

Result<std::string> PrintTorchCsv(const Program& program, TorchMessages messages) {
  if (program.pipes.size() > 1)
    return Status::Invalid(
        fmt::format("{} has {} pipes: stage 0 is on several devices (PyTorch: on one rank)",
                    program.scheme, program.pipes.size()));
  if (program.overlaps)
    return Status::Invalid(
        fmt::format("{}: steps overlap (PyTorch's begin and end empty)", program.scheme));
  const Writer writer(program, messages);
  std::string out;
  for (int device = 0; device < program.devices; ++device) {
    const auto row = writer.Row(device);
    if (!row.ok()) return row.status();
    out += *row + "\n";
  }
  return out;
}

}  // namespace pp
