#include "runtime/run/fill_states.h"

#include <algorithm>
#include <vector>

#include "runtime/plan/binding.h"

namespace pp {
namespace {

// Moments are zeroed this many elements at a time.
constexpr int64_t kZeros = 1 << 16;

Status FillCopy(const Program& program, const Place& place, const StageCall& copy,
                WeightSource* weights, Device* memory) {
  const Peer peer = {place.index, program.job->tp};
  std::vector<float> numbers;
  for (const Tensor& tensor : LayoutStage(*program.job, copy.stage).tensors) {
    numbers.resize(tensor.elements());
    PP_RETURN_IF_ERROR(weights->Read(tensor, numbers.data(), peer));
    memory->compute().CopyIn(copy.weights + tensor.weight, numbers.data(), tensor.bytes());
  }
  const Region* moments =
      FindRegion(program.lists[place.device], Kind::kOptimizer, copy.stage, copy.pipe);
  if (moments == nullptr) return {};
  numbers.assign(kZeros, 0);
  for (int64_t done = 0; done < moments->bytes; done += kZeros * 4)
    memory->compute().CopyIn(copy.optimizer + done, numbers.data(),
                             std::min(kZeros * 4, moments->bytes - done));
  return {};
}

}  // namespace

Status FillStates(const Program& program, const Place& place, WeightSource* weights,
                  Device* memory) {
  for (int stage : program.StagesOf(place.device))
    for (int pipe : program.PipesOf(stage, place.device))
      PP_RETURN_IF_ERROR(FillCopy(
          program, place, BindStage(program, place.device, stage, pipe, *memory), weights, memory));
  return {};
}

void FillLossScale(const Program& program, int device, const kernels::LossScale& scale,
                   Device* memory) {
  const StageCall call =
      BindStage(program, device, program.StagesOf(device).front(), /*pipe=*/0, *memory);
  if (call.scaling != nullptr) memory->compute().CopyIn(call.scaling, &scale, sizeof scale);
}

}  // namespace pp
