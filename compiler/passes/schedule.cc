#include "compiler/passes/schedule.h"

#include "schema/sections.h"
#include "schema/text.h"

namespace pp {

void DropMarks(Program& program) {
  for (DeviceList& list : program.lists)
    std::erase_if(list.body, [](const Instruction& i) {
      return i.op == Op::kReduceGrad || i.op == Op::kWait;
    });
}

Status CheckWholeBackwards(const Program& program, const std::string& pass) {
  auto error = [&](const std::string& what) {
    return Status::Invalid("--passes: " + pass + " with " + program.scheme + ": " + what +
                           " (a scheme with a flush and whole backwards that do not overlap)");
  };
  for (const DeviceList& list : program.lists)
    for (const Instruction& i : list.body) {
      if (i.op == Op::kBackwardInput || i.op == Op::kBackwardWeight || i.overlap)
        return error("'" + ToText(i) + "'");
      if (i.version >= 0) return error("several versions of the weights");
    }
  return {};
}

}  // namespace pp
