#include "schema/sections.h"

#include <algorithm>
#include <utility>

namespace pp {

bool HasSections(const Program& program) {
  return std::any_of(program.lists.begin(), program.lists.end(), [](const DeviceList& list) {
    return !list.prologue.empty() || !list.epilogue.empty();
  });
}

Program Unroll(const Program& program, int bodies) {
  Program unrolled = program;
  unrolled.microbatches = program.microbatches * (bodies + 1);
  for (int step = 1; step <= bodies; ++step)
    unrolled.pipe_of.insert(unrolled.pipe_of.end(), program.pipe_of.begin(), program.pipe_of.end());
  for (int d = 0; d < program.devices; ++d) {
    const DeviceList& from = program.lists[d];
    DeviceList& to = unrolled.lists[d];
    to.prologue.clear();
    to.body.clear();
    to.epilogue.clear();
    auto append = [&](const std::vector<Instruction>& section, int step) {
      for (Instruction i : section) {
        if (i.micro >= 0) i.micro += step * program.microbatches;
        to.body.push_back(i);
      }
    };
    append(from.prologue, 0);
    for (int step = 0; step < bodies; ++step) append(from.body, step);
    append(from.epilogue, bodies);
  }
  return unrolled;
}

Program OnPaper(Program program) {
  return HasSections(program) ? Unroll(program, kPaperBodies) : std::move(program);
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

}  // namespace pp
