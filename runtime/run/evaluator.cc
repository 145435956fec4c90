#include "runtime/run/evaluator.h"

#include <utility>

namespace pp {

Evaluator::Evaluator(Program evaluation, const Args& args)
    : args_(args), program_(std::move(evaluation)) {}

Result<std::unique_ptr<Evaluator>> Evaluator::Make(Program evaluation, const Args& args) {
  std::unique_ptr<Evaluator> made(new Evaluator(std::move(evaluation), args));
  const int device = args.place.device;
  BodyWalk walk;
  PP_RETURN_IF_ERROR(WalkBody(made->program_, device, &walk));
  made->bound_ = Bind(made->program_, device, std::move(walk), *args.device);
  made->lanes_ = std::make_unique<Lanes>(Lanes::Args{.list = &made->bound_,
                                                     .topology = args.topology,
                                                     .transport = args.transport,
                                                     .device = args.device,
                                                     .compute_bell = args.compute_bell,
                                                     .stop = args.stop});
  made->interpreter_ =
      std::make_unique<Interpreter>(Interpreter::Args{.program = &made->program_,
                                                      .list = &made->bound_,
                                                      .lanes = made->lanes_.get(),
                                                      .device = args.device,
                                                      .executor = args.executor,
                                                      .batches = args.validation.batches,
                                                      .replica = args.place.replica,
                                                      .stop = args.stop});
  return made;
}

Status Evaluator::Run(const Newest& newest, double* loss, bool* made) {
  for (const int32_t index : bound_.compute) {
    StageCall& call = bound_.calls[index];
    if (call.op != Op::kEvaluate) continue;
    const StageCall copy =
        BindStage(program_, args_.place.device, call.stage, call.pipe, *args_.device);
    call.weights = copy.weights, call.rounded = copy.rounded;
    bound_.UseSlot(index, newest(call.stage, call.pipe), &call);
  }
  *loss = 0;
  *made = false;
  running_.store(true);
  for (int64_t batch = 0; batch < args_.validation.count; ++batch) {
    PP_RETURN_IF_ERROR(interpreter_->Run({++iteration_}));
    if (args_.stop->load()) break;
    const StepResult& result = interpreter_->result(iteration_);
    args_.compute_bell->WaitUntil(
        [&] { return args_.device->compute().Done(result.end) || args_.stop->load(); });
    for (size_t m = 0; m < result.losses.size(); ++m) {
      *loss += result.losses[m];
      *made |= result.made_by[m] >= 0;
    }
  }
  running_.store(false);
  return {};
}

}  // namespace pp
