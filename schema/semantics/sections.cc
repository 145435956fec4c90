#include "schema/semantics/sections.h"

#include <algorithm>
#include <span>
#include <utility>

namespace pp {

bool HasSections(const Program& program) {
  return std::any_of(program.lists.begin(), program.lists.end(), [](const DeviceList& list) {
    return !list.prologue.empty() || !list.epilogue.empty();
  });
}

namespace {

// Everything but the lists.
Program UnrollHead(const Program& program, int bodies) {
  Program head = program.Head();
  const int steps = HasSections(program) ? bodies + 1 : bodies;
  head.microbatches = program.microbatches * steps;
  for (int step = 1; step < steps; ++step)
    head.pipe_of.insert(head.pipe_of.end(), program.pipe_of.begin(), program.pipe_of.end());
  head.lists.resize(program.lists.size());
  return head;
}

void UnrollList(const Program& program, int device, int bodies, DeviceList* to) {
  const DeviceList& from = program.lists[device];
  to->regions = from.regions;
  to->arena_bytes = from.arena_bytes;
  to->body.reserve(from.prologue.size() + bodies * from.body.size() + from.epilogue.size());
  auto append = [&](const std::vector<Instruction>& section, int step) {
    const size_t begin = to->body.size();
    to->body.insert(to->body.end(), section.begin(), section.end());
    for (Instruction& i : std::span(to->body).subspan(begin))
      if (i.micro >= 0) i.micro += step * program.microbatches;
  };
  append(from.prologue, 0);
  for (int step = 0; step < bodies; ++step) append(from.body, step);
  append(from.epilogue, bodies);
}

}  // namespace

Program Unroll(const Program& program, int bodies) {
  Program unrolled = UnrollHead(program, bodies);
  for (int d = 0; d < program.devices; ++d) UnrollList(program, d, bodies, &unrolled.lists[d]);
  return unrolled;
}

Program UnrollDevice(const Program& program, int device, int bodies) {
  Program unrolled = UnrollHead(program, bodies);
  UnrollList(program, device, bodies, &unrolled.lists[device]);
  return unrolled;
}

Program Unrolled(Program program) {
  return HasSections(program) ? Unroll(program, kUnrolledBodies) : std::move(program);
}

void DeriveSections(Program& program) {
  auto of_next_step = [&](const Instruction& i) { return i.micro >= program.microbatches; };
  if (std::none_of(program.lists.begin(), program.lists.end(), [&](const DeviceList& list) {
        return std::any_of(list.body.begin(), list.body.end(), of_next_step);
      }))
    return;
  for (DeviceList& list : program.lists) DeriveSections(program.microbatches, list);
}

void DeriveSections(int microbatches, DeviceList& list) {
  list.prologue.clear();
  list.epilogue.clear();
  for (Instruction i : list.body) {
    if (i.micro < microbatches) {
      list.epilogue.push_back(i);
    } else {
      i.micro -= microbatches;
      list.prologue.push_back(i);
    }
  }
}

Program EvaluationOf(const Program& program) {
  Program evaluation = program.Head();
  evaluation.evaluates = true;
  for (const DeviceList& list : program.lists)
    evaluation.lists.push_back(
        {.body = list.evaluation, .regions = list.regions, .arena_bytes = list.arena_bytes});
  return evaluation;
}

bool HasEvaluation(const Program& program) {
  return std::any_of(program.lists.begin(), program.lists.end(),
                     [](const DeviceList& list) { return !list.evaluation.empty(); });
}

Program FirstMicroBatch(Program evaluation) {
  evaluation.microbatches = 1;
  evaluation.pipe_of.resize(1);
  for (DeviceList& list : evaluation.lists)
    std::erase_if(list.body, [](const Instruction& i) { return i.micro > 0; });
  return evaluation;
}

}  // namespace pp
