// Writes torch-csv: one row per device, one cell per action, no idle cells; PyTorch determines
// again what waits for what when it adds the messages.
#include <fmt/format.h>

#include "compiler/interop.h"
#include "schema/text.h"

namespace pp {
namespace {

Result<std::string> Row(const Program& program, int device) {
  std::string row;
  const Instruction* first = nullptr;  // of two that overlap
  const auto& list = program.lists[device].body;
  for (size_t index = 0; index < list.size(); ++index) {
    const Instruction& i = list[index];
    if (i.op == Op::kForwardDrop || i.op == Op::kRecompute)
      return Status::Invalid(
          fmt::format("device {}, '{}' (instruction {}): PyTorch's schedules have no recomputation",
                      device, ToText(i), index));
    const char letter = Info(i.op).letter;
    if (letter == 0) continue;  // what PyTorch's own lowering adds
    if (i.version >= 0)
      return Status::Invalid(
          fmt::format("device {}, '{}' (instruction {}): PyTorch has one version of the weights",
                      device, ToText(i), index));
    const bool second = i.overlap && first != nullptr;
    if (!row.empty()) row += second ? ';' : ',';
    if (i.overlap && !second) row += '(';
    row += fmt::format("{}{}{}", i.stage, letter, i.micro);
    if (second) row += ")OVERLAP_F_B";
    first = i.overlap && !second ? &i : nullptr;
  }
  return row;
}

}  // namespace

Result<std::string> PrintTorchCsv(const Program& program) {
  if (program.pipes.size() > 1)
    return Status::Invalid(
        fmt::format("{} has {} pipes: stage 0 is on several devices (PyTorch: on one rank)",
                    program.scheme, program.pipes.size()));
  std::string out;
  for (int device = 0; device < program.devices; ++device) {
    const DeviceList& list = program.lists[device];
    if (!list.prologue.empty() || !list.epilogue.empty())
      return Status::Invalid(
          fmt::format("{}: steps overlap (PyTorch's begin and end empty)", program.scheme));
    const auto row = Row(program, device);
    if (!row.ok()) return row.status();
    out += *row + "\n";
  }
  return out;
}

}  // namespace pp
