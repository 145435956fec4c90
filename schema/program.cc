#include "schema/program.h"

#include <algorithm>

namespace pp {

Program Program::Head() const {
  Program head{.scheme = scheme,
               .devices = devices,
               .stages = stages,
               .microbatches = microbatches,
               .pipes = pipes,
               .pipe_of = pipe_of,
               .shape_of = shape_of,
               .overlaps = overlaps,
               .job = job,
               .evaluates = evaluates,
               .beside = beside};
  ForEachRow(kProgramAttributes<Program>,
             [&](const auto& row) { head.*row.member = this->*row.member; });
  return head;
}

double Program::SizeOf(int shape) const {
  if (shape_of.empty()) return 1;
  return static_cast<double>(job->OfShape(shape).tokens()) / static_cast<double>(job->tokens());
}

bool Program::MakesVersions() const {
  return std::any_of(lists.begin(), lists.end(), [](const DeviceList& list) {
    return std::any_of(list.body.begin(), list.body.end(),
                       [](const Instruction& i) { return i.op == Op::kStep && i.version >= 0; });
  });
}

std::vector<int32_t> Program::StagesOf(int device) const {
  std::vector<int32_t> held;
  for (const Pipe& pipe : pipes)
    for (int s = 0; s < stages; ++s)
      if (pipe.device_of[s] == device) held.push_back(s);
  std::sort(held.begin(), held.end());
  held.erase(std::unique(held.begin(), held.end()), held.end());
  return held;
}

std::vector<int32_t> Program::PipesOf(int stage, int device) const {
  std::vector<int32_t> found;
  for (size_t pipe = 0; pipe < pipes.size(); ++pipe)
    if (pipes[pipe].device_of[stage] == device) found.push_back(static_cast<int32_t>(pipe));
  return found;
}

std::vector<int32_t> Program::TiedStages() const {
  if (!job) return tied;
  if (!job->TrainsTied()) return {};
  return stages == 1 ? std::vector<int32_t>{0} : std::vector<int32_t>{0, stages - 1};
}

bool Program::IsTied(int stage) const {
  if (job) return job->TrainsTied() && (stage == 0 || stage == stages - 1);
  return std::binary_search(tied.begin(), tied.end(), stage);
}

std::vector<double> Program::Shares() const {
  const std::vector<int32_t>& device_of = pipes.front().device_of;
  std::vector<int> held(devices, 0);
  for (int32_t device : device_of) ++held[device];
  std::vector<double> shares;
  for (int32_t device : device_of) shares.push_back(1.0 / held[device]);
  return shares;
}

int Program::StagesPerDevice() const { return std::max(1, stages / std::max(1, devices)); }

}  // namespace pp
