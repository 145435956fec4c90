#include "compiler/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "schema/verify.h"

namespace pp {
namespace {

// Runs `work`, then tells the observer.
template <typename Work>
Status Timed(const PassObserver& observer, std::string_view name, const Program& program,
             Work work) {
  const auto begin = std::chrono::steady_clock::now();
  PP_RETURN_IF_ERROR(work());
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  if (observer) observer(name, program, taken.count());
  return {};
}

Status RunPass(const Pass& pass, Program& program, const PassContext& context,
               const PassObserver& observer) {
  PP_RETURN_IF_ERROR(
      Timed(observer, pass.name, program, [&] { return pass.run(program, context); }));
  return Timed(observer, "verify", program,
               [&] { return Verify(program, pass.depth).In(fmt::format("after {}", pass.name)); });
}

// The model's part of the program.
Status AddJob(const CompileOptions& options, Program& program) {
  if (!options.model) {
    if (!options.layers_per_stage.empty())
      return Status::Invalid("--layers-per-stage: needs --model");
    if (options.sequence_length > 0) return Status::Invalid("--seq-length: needs --model");
    return {};
  }
  const ModelConfig& model = *options.model;
  Job job{model,
          options.micro_batch_size,
          options.sequence_length > 0 ? options.sequence_length : model.n_positions,
          {}};
  if (options.layers_per_stage.empty()) {
    auto split = SplitLayers(model.n_layer, program.stages);
    if (!split.ok()) return split.status().In("--model");
    job.layers_per_stage = *split;
  } else {
    job.layers_per_stage = options.layers_per_stage;
    PP_RETURN_IF_ERROR(
        CheckSplit(job.layers_per_stage, model.n_layer, program.stages).In("--layers-per-stage"));
  }
  PP_RETURN_IF_ERROR(CheckJob(job));
  program.job = job;
  return {};
}

constexpr std::string_view kMario =
    "apply-checkpoint,overlap-recompute,remove-redundancy,prepose-forward";

// The passes that were asked for, by name.
Result<std::vector<const Pass*>> FindPasses(const std::string& names) {
  std::vector<const Pass*> found;
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    begin = end + 1;
    if (name == "mario") {
      const auto four = FindPasses(std::string(kMario));
      found.insert(found.end(), four->begin(), four->end());
      continue;
    }
    const Pass* match = nullptr;
    std::string known;
    for (const Pass& pass : Passes()) {
      if (pass.always) continue;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", pass.name);
      if (pass.name == name) match = &pass;
    }
    if (match == nullptr)
      return Status::Invalid(
          fmt::format("--passes: unknown pass '{}' ({})", name, "mario, " + known));
    found.push_back(match);
  }
  return found;
}

}  // namespace

Status Lower(Program& program, Depth depth, const PassContext& context,
             const PassObserver& observer) {
  for (const Pass& pass : Passes())
    if (pass.always && (pass.depth > depth || depth == Depth::kSchedule))
      PP_RETURN_IF_ERROR(RunPass(pass, program, context, observer));
  return {};
}

Result<Program> Compile(const CompileOptions& options, const PassObserver& observer) {
  auto passes = FindPasses(options.passes);
  if (!passes.ok()) return passes.status();
  Program program;
  PP_RETURN_IF_ERROR(Timed(observer, "scheme", program, [&]() -> Status {
    auto built = BuildSchedule(options.scheme, options.shape);
    if (!built.ok()) return built.status();
    program = std::move(*built);
    program.replicas = options.replicas;
    program.zero = options.zero;
    return AddJob(options, program);
  }));
  program.passes = options.passes;
  auto costs = ParseCosts(options.costs.empty() ? "f=1" : options.costs, program.stages);
  if (!costs.ok()) return costs.status();
  const PassContext context{*costs, options.p2p, options.reduce, options.fit};
  if (!options.fit.limit.values.empty()) {
    auto fit = FindPasses("fit-memory");
    if (!fit.ok()) return fit.status();
    if (std::find(passes->begin(), passes->end(), fit->front()) == passes->end())
      passes->push_back(fit->front());
  }
  for (const Pass* pass : *passes) PP_RETURN_IF_ERROR(RunPass(*pass, program, context, observer));
  PP_RETURN_IF_ERROR(Lower(program, Depth::kSchedule, context, observer));
  return program;
}

}  // namespace pp
