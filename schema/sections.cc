#include "schema/sections.h"

#include <algorithm>
#include <span>
#include <utility>

namespace pp {

Sections SectionsOf(const Program& program, int device) {
  Sections sections;
  if (!program.overlaps) return sections;
  for (Instruction i : program.lists[device].body) {
    if (i.micro < program.microbatches) {
      sections.epilogue.push_back(i);
    } else {
      i.micro -= program.microbatches;
      sections.prologue.push_back(i);
    }
  }
  return sections;
}

int PrologueSize(const Program& program, int device) {
  const std::vector<Instruction>& body = program.lists[device].body;
  const auto is_ahead = [&](const Instruction& i) { return i.micro >= program.microbatches; };
  return program.overlaps ? static_cast<int>(std::count_if(body.begin(), body.end(), is_ahead)) : 0;
}

namespace {

// Everything but the lists.
Program UnrollHead(const Program& program, int bodies) {
  Program head = program.Head();
  head.overlaps = false;
  const int steps = program.overlaps ? bodies + 1 : bodies;
  head.microbatches = program.microbatches * steps;
  for (int step = 1; step < steps; ++step)
    for (auto [all, of_a_step] :
         {std::pair(&head.pipe_of, &program.pipe_of), {&head.shape_of, &program.shape_of}})
      all->insert(all->end(), of_a_step->begin(), of_a_step->end());
  head.lists.resize(program.lists.size());
  return head;
}

void UnrollList(const Program& program, int device, int bodies, DeviceList* to) {
  const DeviceList& from = program.lists[device];
  to->regions = from.regions;
  to->arena_bytes = from.arena_bytes;
  const Sections sections = SectionsOf(program, device);
  to->body.reserve(bodies * from.body.size() + sections.prologue.size() + sections.epilogue.size());
  auto append = [&](const std::vector<Instruction>& section, int step) {
    const size_t begin = to->body.size();
    to->body.insert(to->body.end(), section.begin(), section.end());
    for (Instruction& i : std::span(to->body).subspan(begin))
      if (i.micro >= 0) i.micro += step * program.microbatches;
  };
  append(sections.prologue, 0);
  for (int step = 0; step < bodies; ++step) append(from.body, step);
  append(sections.epilogue, bodies);
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
  return program.overlaps ? Unroll(program, kUnrolledBodies) : std::move(program);
}

}  // namespace pp
