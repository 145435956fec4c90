#include "schema/routines.h"

#include <algorithm>
#include <utility>

namespace pp {

std::string StepRoutine(int32_t microbatches) {
  return std::string(kStepRoutine) + "-" + std::to_string(microbatches);
}

std::vector<int32_t> StepSizes(const Program& program) {
  std::vector<int32_t> sizes{program.microbatches};
  for (const Routine& routine : program.routines)
    if (!Evaluates(routine)) sizes.push_back(routine.microbatches);
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

const std::vector<int32_t>& PipesOfStep(const Program& program, int32_t microbatches) {
  if (microbatches == program.microbatches) return program.pipe_of;
  return program.routines[FindRoutine(program, StepRoutine(microbatches))].pipe_of;
}

int FindRoutine(const Program& program, std::string_view name) {
  for (size_t i = 0; i < program.routines.size(); ++i)
    if (program.routines[i].name == name) return static_cast<int>(i);
  return -1;
}

Program RoutineOf(const Program& program, size_t index) {
  const Routine& routine = program.routines[index];
  Program one = program.Head();
  one.overlaps = false;
  one.ramp = {};
  one.microbatches = routine.microbatches;
  one.pipe_of = routine.pipe_of;
  one.shape_of.resize(std::min(one.shape_of.size(), one.pipe_of.size()));
  one.evaluates = Evaluates(routine);
  one.beside = true;
  for (const DeviceList& list : program.lists)
    one.lists.push_back({.body = list.routines[index],
                         .routines = {},
                         .regions = list.regions,
                         .arena_bytes = list.arena_bytes});
  return one;
}

Program RoutineOf(const Program& program, std::string_view name) {
  return RoutineOf(program, static_cast<size_t>(FindRoutine(program, name)));
}

Program MicroBatchOf(Program routine, int micro) {
  routine.microbatches = 1;
  routine.pipe_of = {routine.pipe_of[micro]};
  if (!routine.shape_of.empty()) routine.shape_of = {routine.shape_of[micro]};
  for (DeviceList& list : routine.lists) {
    std::erase_if(list.body,
                  [&](const Instruction& i) { return i.micro >= 0 && i.micro != micro; });
    for (Instruction& i : list.body) i.micro = std::min(i.micro, 0);
  }
  return routine;
}

Routine EvaluationLike(const Program& program) {
  return {std::string(kEvaluationRoutine), program.microbatches, program.pipe_of};
}

void AddRoutine(Routine head, std::vector<std::vector<Instruction>> lists, Program* program) {
  int index = FindRoutine(*program, head.name);
  if (index < 0) {
    index = static_cast<int>(program->routines.size());
    program->routines.emplace_back();
    for (DeviceList& list : program->lists) list.routines.emplace_back();
  }
  program->routines[index] = std::move(head);
  for (size_t d = 0; d < program->lists.size(); ++d)
    program->lists[d].routines[index] = std::move(lists[d]);
}

void DropRoutine(std::string_view name, Program* program) {
  const int index = FindRoutine(*program, name);
  if (index < 0) return;
  program->routines.erase(program->routines.begin() + index);
  for (DeviceList& list : program->lists) list.routines.erase(list.routines.begin() + index);
}

void DropRoutines(Program* program) {
  program->routines.clear();
  for (DeviceList& list : program->lists) list.routines.clear();
}

}  // namespace pp
