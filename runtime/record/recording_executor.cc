#include "runtime/record/recording_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "schema/routines.h"

namespace pp {
namespace {

constexpr int64_t kMostRecordBytes = int64_t{1} << 30;  // of a rank

// The number of records that a rank makes per step.
int64_t RecordsOfAStep(const Program& program, const Place& place) {
  int64_t records = 0;
  ValueReader reader(program, place.replica, place.index);
  for (int stage : program.StagesOf(place.device))
    for (int pipe : program.PipesOf(stage, place.device)) {
      const auto micros = std::count(program.pipe_of.begin(), program.pipe_of.end(), pipe);
      const auto tensors = static_cast<int64_t>(reader.layout(stage).tensors.size());
      const auto parts = static_cast<int64_t>(
          OwnedPartsOf(program, reader.layout(stage), place.replica, pipe).size());
      records += 2 * micros + tensors + 2 * parts + 1;
    }
  return records;
}

class RecordingExecutor : public StageExecutor {
 public:
  RecordingExecutor(std::unique_ptr<StageExecutor> inner, const RecordingArgs& args)
      : inner_(std::move(inner)),
        args_(args),
        program_(*args.program),
        reader_(program_, args.place.replica, args.place.index) {
    args_.records->reserve(args.steps * RecordsOfAStep(program_, args.place));
  }

  int64_t bytes() const override { return inner_->bytes(); }

  void Run(const StageCall& call) override {
    if (call.op == Op::kStep)
      KeepTensors(StepName(call, Checked::kSum), call, ValueReader::Whose::kOwned,
                  ValueReader::Numbers::kWgrad);
    inner_->Run(call);
    if (args_.peers != nullptr && args_.peers->stopped()) return;
    switch (call.op) {
      case Op::kForward:
      case Op::kForwardDrop:
        return Forward(call);
      case Op::kBackward:
        InputGradient(call);
        return AddedGradient(call);
      case Op::kBackwardInput:
        return InputGradient(call);
      case Op::kBackwardWeight:
        return AddedGradient(call);
      case Op::kStep:
        return Stepped(call);
      default:
        return;
    }
  }

 private:
  void Keep(const ValueRecord& record) { args_.records->push_back(record); }
  void KeepTensors(ValueName name, const StageCall& call, ValueReader::Whose whose,
                   ValueReader::Numbers numbers) {
    const bool wgrad = numbers == ValueReader::Numbers::kWgrad;
    name.depth = call.stage;
    reader_.Tensors(name, call.stage, call.pipe, whose, numbers, wgrad ? call.wgrad : call.weights,
                    [&](const ValueRecord& record) { Keep(record); });
  }

  ValueName NameOf(const StageCall& call, Checked what) const {
    return {.step = call.step, .what = what, .replica = args_.place.replica, .micro = call.micro};
  }
  // A STEP counts steps of the whole training.
  ValueName StepName(const StageCall& call, Checked what) const {
    return {.step = call.step - args_.steps_before, .what = what};
  }

  void Forward(const StageCall& call) {
    ValueName name = NameOf(call, Checked::kAct);
    name.depth = call.stage;
    if (call.stage + 1 < program_.stages) return Keep(reader_.Activation(name, call.act));
    name.what = Checked::kLoss;
    Keep(reader_.Scalar(name, *call.loss));
  }

  void InputGradient(const StageCall& call) {
    if (call.stage == 0) return;
    ValueName name = NameOf(call, Checked::kGrad);
    name.depth = program_.stages - call.stage;  // of stage - 1
    Keep(reader_.Activation(name, call.grad_before));
  }

  // After the last micro-batch of a copy, before anything is reduced.
  void AddedGradient(const StageCall& call) {
    int& added = added_[{call.stage, call.pipe}];
    added = call.accumulate == kernels::Update::kSet ? 1 : added + 1;
    const std::vector<int32_t>& pipe_of =
        PipesOfStep(program_, args_.batches->Microbatches(call.step));
    if (added < std::count(pipe_of.begin(), pipe_of.end(), call.pipe)) return;
    ValueName name = NameOf(call, Checked::kOwnSum);
    name.micro = -1;
    name.pipe = call.pipe;
    KeepTensors(name, call, ValueReader::Whose::kAll, ValueReader::Numbers::kWgrad);
  }

  void Stepped(const StageCall& call) {
    KeepTensors(StepName(call, Checked::kWeights), call, ValueReader::Whose::kOwned,
                ValueReader::Numbers::kWeights);
    if (call.norm == nullptr) return;
    ValueRecord norm =
        reader_.Scalar(StepName(call, Checked::kNorm), call.norm[NormBlocks(*program_.job)]);
    norm.copy = call.stage;  // every STEP has it
    norm.peer = TopologyOf(program_).RankOf(args_.place);
    Keep(norm);
  }

  const std::unique_ptr<StageExecutor> inner_;
  const RecordingArgs args_;
  const Program& program_;
  ValueReader reader_;
  std::map<std::pair<int, int>, int> added_;  // by stage and pipe
};

}  // namespace

Status CheckComparable(const Program& program, int64_t steps) {
  if (program.MakesVersions())
    return Status::Invalid(fmt::format(
        "--compare: the micro-batches of a step of {} use different weights (a scheme without "
        "versions)",
        program.scheme));
  const Topology topology = TopologyOf(program);
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const int64_t each =
        RecordsOfAStep(program, topology.PlaceOf(rank)) * static_cast<int64_t>(sizeof(ValueRecord));
    if (steps > kMostRecordBytes / each)
      return Status::Invalid(fmt::format("--compare: {} steps (at most {}: each takes {} bytes)",
                                         steps, kMostRecordBytes / each, each));
  }
  return {};
}

std::unique_ptr<StageExecutor> MakeRecordingExecutor(std::unique_ptr<StageExecutor> inner,
                                                     const RecordingArgs& args) {
  return std::make_unique<RecordingExecutor>(std::move(inner), args);
}

}  // namespace pp
