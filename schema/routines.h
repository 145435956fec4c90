// Routines: a plan is lists over one memory, each of which runs by its name. The bodies are those
// of `step`; what else there is (Program::routines) runs between two steps, or instead of one:
//
//   step-8  step-8  step  evaluation  step  step        on each rank, one after the other
//
//   evaluation  the forwards of one batch, for its loss; it modifies nothing
//   step-M      a step of M micro-batches, fewer than the bodies have
//
// Each is a program of its own, with micro-batches of its own: it is compiled, proved, drawn and
// run as one. A rank begins a routine when all of the one before is over there. As none leaves
// anything behind (verify.h), any may follow any other; only where steps overlap (sections.h) do
// they need to be together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "schema/program.h"

namespace pp {

inline constexpr std::string_view kStepRoutine = "step", kEvaluationRoutine = "evaluation";

// "step-8".
std::string StepRoutine(int32_t microbatches);
inline bool Evaluates(const Routine& routine) { return routine.name == kEvaluationRoutine; }

// How many micro-batches the steps have that a plan can make, ascending.
std::vector<int32_t> StepSizes(const Program& program);
// The micro-batches' pipes in those of one of these sizes.
const std::vector<int32_t>& PipesOfStep(const Program& program, int32_t microbatches);

// Its index in Program::routines; -1: there is none of that name.
int FindRoutine(const Program& program, std::string_view name);
inline bool HasEvaluation(const Program& program) {
  return FindRoutine(program, kEvaluationRoutine) >= 0;
}
// That one as a program, in the same memory: plain bodies.
Program RoutineOf(const Program& program, size_t index);
// REQUIRES: there is such a routine.
Program RoutineOf(const Program& program, std::string_view name);
// One of its micro-batches alone, as number 0.
Program MicroBatchOf(Program routine, int micro);

// An evaluation of as many micro-batches as a step has, without its lists.
Routine EvaluationLike(const Program& program);
// Adds a routine, or replaces the one of its name. `lists`: by device.
void AddRoutine(Routine head, std::vector<std::vector<Instruction>> lists, Program* program);
// None of that name: nothing.
void DropRoutine(std::string_view name, Program* program);
void DropRoutines(Program* program);

// Calls f(instructions) for each list of a device.
template <typename List, typename F>
void ForEachList(List& list, F f) {
  f(list.body);
  for (auto& routine : list.routines) f(routine);
}

}  // namespace pp
