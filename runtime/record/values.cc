#include "runtime/record/values.h"

#include <fmt/format.h>

namespace pp {

std::string TextOf(const ValueName& name, const Job& job) {
  const int stage = name.what == Checked::kGrad ? job.stages() - 1 - name.depth : name.depth;
  const auto tensor = [&] { return LayoutStage(job, stage).tensors[name.tensor].name(); };
  const std::string of_replica = fmt::format(" of replica {}", name.replica);
  switch (name.what) {
    case Checked::kAct:
      return fmt::format("act s{} m{}{}", stage, name.micro, of_replica);
    case Checked::kLoss:
      return fmt::format("the loss of m{}{}", name.micro, of_replica);
    case Checked::kGrad:
      return fmt::format("grad s{} m{}{}", stage, name.micro, of_replica);
    case Checked::kOwnSum:
      return fmt::format("wgrad s{} {}, the sum of pipe {}{}", stage, tensor(), name.pipe,
                         of_replica);
    case Checked::kSum:
      return fmt::format("wgrad s{} {} after its reductions", stage, tensor());
    case Checked::kNorm:
      return "the gradient's norm";
    case Checked::kWeights:
      return fmt::format("weights s{} {} after STEP", stage, tensor());
  }
  PP_CHECK(false);
}

ValueReader::ValueReader(const Program& program, int replica, int index)
    : program_(program), replica_(replica), index_(index) {}

ValueReader::Stage& ValueReader::StageOf(int stage) {
  const auto [found, is_new] = stages_.try_emplace(stage);
  Stage& made = found->second;
  if (is_new) {
    made.layout = LayoutStage(*program_.job, stage);
    made.all = AllParts(made.layout);
    for (const Tensor& tensor : made.layout.tensors)
      made.stretches.push_back(StretchesOf(tensor, {index_, program_.job->tp}));
  }
  return made;
}

const StageLayout& ValueReader::layout(int stage) { return StageOf(stage).layout; }

const std::vector<OwnedPart>& ValueReader::Owned(Stage& stage, int pipe) {
  const auto [found, is_new] = stage.owned.try_emplace(pipe);
  if (is_new) found->second = OwnedPartsOf(program_, stage.layout, replica_, pipe);
  return found->second;
}

ValueRecord ValueReader::Activation(const ValueName& name, const std::byte* at) const {
  const Job job = program_.job->OfShape(program_.ShapeOf(name.micro));
  const int64_t numbers = job.stream_tokens() * job.model.hidden_size;
  ValueRecord record{
      .name = name, .copy = 0, .peer = job.sequence_parallel ? -1 : index_, .print = {}};
  record.print.Add(at, job.dtype, job.sequence_parallel ? index_ * numbers : 0, numbers);
  return record;
}

ValueRecord ValueReader::Scalar(const ValueName& name, double number) const {
  ValueRecord record{.name = name, .copy = 0, .peer = index_, .print = {}};
  record.print.numbers = 1;
  record.print.squares = number * number;
  for (double& sum : record.print.sums) sum = number;
  return record;
}

}  // namespace pp
