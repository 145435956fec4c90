// What each stage of the model contains and costs: pipec show --format stages.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "compiler/cuts.h"
#include "compiler/draw.h"
#include "compiler/places.h"
#include "schema/model/work.h"

namespace pp {
namespace {

std::string Bytes(int64_t bytes) { return fmt::format("{:.4g}", static_cast<double>(bytes) / 1e6); }
// What adapters share a stage with, and the adapters: weights alone.
std::string FrozenAndTrained(const StageLayout& layout) {
  int64_t frozen = 0, trained = 0;
  for (const Tensor& tensor : layout.tensors)
    (tensor.trainable() ? trained : frozen) += tensor.bytes();
  return fmt::format(" | {:>9} {:>9}", Bytes(frozen), Bytes(trained));
}
std::string Giga(double number) { return fmt::format("{:.4g}", number / 1e9); }

// Why another trainer cannot take the cut, or nothing.
std::string WhyNot(const Program& program, Pattern pattern) {
  if (std::string why = Misplaced(program, pattern); !why.empty()) return why;
  const auto& layers = program.job->layers_per_stage;
  const auto none = std::find(layers.begin() + 1, layers.end() - 1, 0);
  if (none == layers.end() - 1) return "";
  return fmt::format("stage {} has no layer (at least one each between the ends)",
                     none - layers.begin());
}

// The same cut as other trainers take it: Megatron-LM, which places stage s on device s mod D, and
// torchtitan, which also knows the V of ZB-V and DualPipeV. Or why they cannot take it.
std::string OfOthers(const Program& program) {
  if (program.stages == 1) return "";
  const std::string no_loop = WhyNot(program, Pattern::kLoop);
  const bool is_v = PatternOf(program) == Pattern::kV;
  const std::string why_not = is_v ? WhyNot(program, Pattern::kV) : no_loop;
  const std::vector<int>& layers = program.job->layers_per_stage;
  return fmt::format("Megatron-LM: {}\ntorchtitan: {}\n",
                     no_loop.empty() ? MegatronCuts(layers) : "not with its layout: " + no_loop,
                     why_not.empty()
                         ? TorchtitanCuts(layers) + (is_v ? " (ZBVZeroBubble, DualPipeV)" : "")
                         : "not with its lists: " + why_not);
}

}  // namespace

Result<std::string> Stages(const Program& program) {
  if (!program.job) return Status::Invalid("no model (pipec compile --model)");
  const Job& job = *program.job;
  std::string text = fmt::format(
      "{} x {} tokens a micro-batch{}; operations in 10^9, sizes and traffic in 10^6 and 10^9 "
      "bytes{}\n",
      job.micro_batch_size, job.sequence_length,
      job.tp > 1 ? fmt::format(", {} peers", job.tp) : "", job.tp > 1 ? ", of one peer" : "");
  text += fmt::format(
      "{:<5} {:<9} {:>6} {:>12} | {:>9} {:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} {:>9} | {:>9} {:>9} "
      "{:>9} {:>9} {:>9}{}\n",
      "stage", "devices", "layers", "parameters", "forward", "again", "input", "weight", "traffic",
      "again", "input", "weight", "weights", "stash", "kept", "work", "act",
      job.lora.given() ? fmt::format(" | {:>9} {:>9}", "frozen", "trained") : "");
  for (int stage = 0; stage < program.stages; ++stage) {
    const StageLayout layout = LayoutStage(job, stage);
    const StageWork work = WorkOf(layout, job);
    std::string devices;
    for (const Pipe& pipe : program.pipes)
      devices += fmt::format("{}d{}", devices.empty() ? "" : " ", pipe.device_of[stage]);
    text += fmt::format(
        "{:<5} {:<9} {:>6} {:>12} | {:>9} {:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} {:>9} | {:>9} "
        "{:>9} {:>9} {:>9} {:>9}{}\n",
        fmt::format("s{}", stage), devices, layout.layers, layout.parameters,
        Giga(work.forward.operations), Giga(work.recompute.operations), Giga(work.input.operations),
        Giga(work.weight.operations), Giga(work.forward.bytes), Giga(work.recompute.bytes),
        Giga(work.input.bytes), Giga(work.weight.bytes), Bytes(layout.weights_bytes),
        Bytes(layout.stash_bytes), Bytes(layout.kept_bytes), Bytes(layout.work_bytes),
        Bytes(layout.act_bytes), job.lora.given() ? FrozenAndTrained(layout) : "");
  }
  return text + OfOthers(program);
}

}  // namespace pp
