#include "runtime/run/evaluations.h"

#include <utility>

#include "schema/routines.h"

namespace pp {

Result<std::unique_ptr<Evaluations>> Evaluations::Make(Args args) {
  std::unique_ptr<Evaluations> made(new Evaluations(std::move(args)));
  const Args& a = made->args_;
  if (a.validation.batches != nullptr) {
    Runner::Args runner = a.runner;
    runner.batches = a.validation.batches;
    const auto added = a.runners->Add(RoutineOf(*a.program, kEvaluationRoutine), runner);
    PP_RETURN_IF_ERROR(added.status());
    made->validation_ = *added;
  }
  const Place& place = a.runner.place;
  const bool samples = place.replica == 0 && Samples(*a.program, place.device);
  if (a.sample.count > 0 && (samples || made->rank() == 0)) {
    auto sampler = Sampler::Make({.options = a.sample,
                                  .program = a.program,
                                  .runners = a.runners,
                                  .runner = a.runner,
                                  .on_own = [self = made.get()](int32_t token) {
                                    if (self->rank() == 0) return self->Hear(token);
                                    self->args_.tell(0, token);
                                  }});
    PP_RETURN_IF_ERROR(sampler.status());
    made->sampler_ = std::move(*sampler);
  }
  return made;
}

Status Evaluations::Validate(const Newest& newest, double* loss) {
  bool made = false;
  return Evaluate(args_.runners, validation_, newest, args_.validation.count, loss, &made)
      .In("validation");
}

Status Evaluations::Sample(const Newest& newest) {
  return sampler_ ? sampler_->Run(newest).In("sample") : Status();
}

// Rank 0 tells the others that wait for it, or, if the user has asked to stop, that it was the last
// one.
void Evaluations::Hear(int32_t token) {
  if (!sampler_) return;
  if (rank() == 0) {
    if (args_.asked_to_stop->load()) token = -1;
    const Topology& topology = *args_.runner.topology;
    for (const int other : topology.RanksOf(0))
      if (other != 0 && Samples(*args_.program, topology.PlaceOf(other).device))
        args_.tell(other, token);
  }
  sampler_->Hear(token);
}

std::vector<int32_t> Evaluations::sample() const {
  return sampler_ ? sampler_->tokens() : std::vector<int32_t>();
}

}  // namespace pp
