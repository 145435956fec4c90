#include "runtime/plan/runner.h"

#include <algorithm>
#include <utility>

#include "runtime/plan/bind_collective.h"

namespace pp {

Runner::Runner(const Args& args, BodyWalk walk)
    : args_(args), bound_(Bind(*args.program, args.place.device, std::move(walk), *args.device)) {
  std::vector<CollectiveArgs> collectives = BindCollectives(
      *args.program, *args.topology, args.topology->RankOf(args.place), *args.device);
  if (args.after_bind) args.after_bind(&bound_, &collectives);
  lanes_ = std::make_unique<Lanes>(Lanes::Args{.list = &bound_,
                                               .topology = args.topology,
                                               .transport = args.transport,
                                               .collectives = std::move(collectives),
                                               .device = args.device,
                                               .recorder = args.lane_recorder,
                                               .compute_bell = args.compute_bell,
                                               .stop = args.stop});
  interpreter_ =
      std::make_unique<Interpreter>(Interpreter::Args{.program = args.program,
                                                      .list = &bound_,
                                                      .lanes = lanes_.get(),
                                                      .device = args.device,
                                                      .executor = args.executor,
                                                      .batches = args.batches,
                                                      .replica = args.place.replica,
                                                      .steps_before = args.steps_before,
                                                      .updates_before = args.updates_before,
                                                      .recorder = args.compute_recorder,
                                                      .stop = args.stop});
}

Status Runner::Run(int64_t step, BodyPart part) {
  ++runs_;
  return interpreter_->Run({runs_, part, step - runs_});
}

void Runner::Use(const Newest& newest) {
  for (const int32_t index : bound_.compute) {
    StageCall& call = bound_.calls[index];
    if (call.op != Op::kEvaluate) continue;
    const StageCall copy =
        BindStage(*args_.program, args_.place.device, call.stage, call.pipe, *args_.device);
    call.weights = copy.weights, call.rounded = copy.rounded;
    bound_.UseSlot(index, newest(call.stage, call.pipe), &call);
  }
}

int Runner::current() const {
  if (const int awaited = lanes_->device_waits_for(); awaited >= 0)
    for (size_t i = bound_.list.size(); i-- > 0;)
      if (bound_.list[i].op == Op::kWait && bound_.waits_for[i].index == awaited)
        return static_cast<int>(i);
  return interpreter_->current();
}

void Runner::Settle() const {
  const Queue& queue = args_.device->compute();
  const Ticket last = queue.last();
  args_.compute_bell->WaitUntil([&] { return queue.Done(last) || args_.stop->load(); });
}

Runner* Runners::Add(const Runner::Args& args, BodyWalk walk) {
  Runner* runner = all_.emplace_back(std::make_unique<Runner>(args, std::move(walk))).get();
  Runner* none = nullptr;
  running_.compare_exchange_strong(none, runner);
  return runner;
}

Result<Runner*> Runners::Add(Program program, Runner::Args args) {
  args.program = &programs_.emplace_back(std::move(program));
  BodyWalk walk;
  PP_RETURN_IF_ERROR(WalkBody(*args.program, args.place.device, &walk));
  return Add(args, std::move(walk));
}

Status Runners::Run(Runner* runner, int64_t step, BodyPart part) {
  if (Runner* before = running_.load(); before != runner) {
    before->Settle();
    running_.store(runner);
  }
  return runner->Run(step, part);
}

Status Runners::Advance(bool* moved) {
  for (const auto& one : all_) PP_RETURN_IF_ERROR(one->lanes().Advance(moved));
  return {};
}

bool Runners::waiting() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const auto& one) { return one->lanes().waiting(); });
}

bool Runners::in_flight() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const auto& one) { return one->lanes().in_flight(); });
}

int64_t Runners::executed() const {
  int64_t executed = 0;
  for (const auto& one : all_) executed += one->interpreter().executed();
  return executed;
}

TimeSpent Runners::time() const {
  TimeSpent time;
  for (const auto& one : all_) {
    time += one->interpreter().time();
    time.communication += one->lanes().times();
  }
  return time;
}

}  // namespace pp
