// add-evaluation: the routine (routines.h) for a validation loss, and for samples: with a model
// always, without if asked for. Only the forwards of a step, in the step's order, without dropout.
//
//   device 0 holds s0           device 0 holds s0
//     LOAD      s0 m0             ..
//     FW        s0 m0           evaluation
//     SEND_act  s0 m0 to d1       LOAD      s0 m0
//     LOAD      s0 m1      =>     EVAL      s0 m0
//     FW        s0 m1             SEND_act  s0 m0 to d1
//     ..                          LOAD      s0 m1
//                                 EVAL      s0 m1
//                                 ..
//
// If steps overlap the order is that of one step's forwards, wherever they are.
#include <optional>
#include <utility>
#include <vector>

#include "compiler/pass.h"
#include "schema/routines.h"
#include "schema/sections.h"

namespace pp {
namespace {

// The forwards of the first step.
std::vector<Instruction> Forwards(const Program& unrolled, int device, int microbatches) {
  std::vector<Instruction> list;
  for (const Instruction& i : unrolled.lists[device].body) {
    const bool forward = i.op == Op::kForward || i.op == Op::kForwardDrop;
    if (!forward || i.micro >= microbatches) continue;
    if (i.stage == 0 || i.stage == unrolled.stages - 1)
      list.push_back({.op = Op::kLoad, .stage = i.stage, .micro = i.micro});
    list.push_back({.op = Op::kEvaluate, .stage = i.stage, .micro = i.micro});
  }
  return list;
}

}  // namespace

Status AddEvaluation(Program& program, const PassContext& context) {
  if (!program.job && !context.evaluates) return {};
  Program evaluation = program.Head();
  evaluation.overlaps = false;
  evaluation.evaluates = true;
  evaluation.lists.resize(program.devices);
  const std::optional<Program> unrolled =
      program.overlaps ? std::optional(Unroll(program, kUnrolledBodies)) : std::nullopt;
  for (int d = 0; d < program.devices; ++d)
    evaluation.lists[d].body = Forwards(unrolled ? *unrolled : program, d, program.microbatches);
  // On a clock on which all stages take equally long: otherwise messages would pile up before a
  // slow one, and with them the memory.
  PassContext plain = context;
  plain.costs = CostModel();
  plain.comm = nullptr;
  PP_RETURN_IF_ERROR(InsertComm(evaluation, plain));
  std::vector<std::vector<Instruction>> lists;
  for (DeviceList& list : evaluation.lists) lists.push_back(std::move(list.body));
  AddRoutine(EvaluationLike(program), std::move(lists), &program);
  return {};
}

}  // namespace pp
