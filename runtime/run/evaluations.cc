#include "runtime/run/evaluations.h"

#include <utility>

#include "schema/sections.h"

namespace pp {

Result<std::unique_ptr<Evaluations>> Evaluations::Make(Args args) {
  std::unique_ptr<Evaluations> made(new Evaluations(std::move(args)));
  const Args& a = made->args_;
  if (a.evaluator.validation.batches != nullptr) {
    auto evaluator = Evaluator::Make(EvaluationOf(*a.program), a.evaluator);
    PP_RETURN_IF_ERROR(evaluator.status());
    made->evaluator_ = std::move(*evaluator);
  }
  const Place& place = a.evaluator.place;
  const bool samples = place.replica == 0 && Samples(*a.program, place.device);
  if (a.sample.count > 0 && (samples || made->rank() == 0)) {
    auto sampler = Sampler::Make({.options = a.sample,
                                  .evaluator = a.evaluator,
                                  .program = a.program,
                                  .on_own = [self = made.get()](int32_t token) {
                                    if (self->rank() == 0) return self->Hear(token);
                                    self->args_.tell(0, token);
                                  }});
    PP_RETURN_IF_ERROR(sampler.status());
    made->sampler_ = std::move(*sampler);
  }
  return made;
}

Status Evaluations::Validate(const Evaluator::Newest& newest, double* loss) {
  bool made = false;
  return evaluator_->Run(newest, loss, &made).In("validation");
}

Status Evaluations::Sample(const Evaluator::Newest& newest) {
  return sampler_ ? sampler_->Run(newest).In("sample") : Status();
}

// Rank 0 tells the others that wait for it, or, if the user has asked to stop, that it was the last
// one.
void Evaluations::Hear(int32_t token) {
  if (!sampler_) return;
  if (rank() == 0) {
    if (args_.asked_to_stop->load()) token = -1;
    const Topology& topology = *args_.evaluator.topology;
    for (const int other : topology.RanksOf(0))
      if (other != 0 && Samples(*args_.program, topology.PlaceOf(other).device))
        args_.tell(other, token);
  }
  sampler_->Hear(token);
}

Status Evaluations::Advance(bool* moved) {
  Status status;
  ForEach([&](Evaluator& one) {
    if (status.ok()) status = one.lanes().Advance(moved);
  });
  return status;
}

bool Evaluations::waiting() const {
  bool waiting = false;
  ForEach([&](const Evaluator& one) { waiting |= one.lanes().waiting(); });
  return waiting;
}

bool Evaluations::in_flight() const {
  bool in_flight = false;
  ForEach([&](const Evaluator& one) { in_flight |= one.lanes().in_flight(); });
  return in_flight;
}

int64_t Evaluations::executed() const {
  int64_t executed = 0;
  ForEach([&](const Evaluator& one) { executed += one.interpreter().executed(); });
  return executed;
}

const Instruction* Evaluations::current() const {
  const Instruction* current = nullptr;
  ForEach([&](const Evaluator& one) {
    if (one.running()) current = &one.current();
  });
  return current;
}

TimeSpent Evaluations::time() const {
  TimeSpent time;
  ForEach([&](Evaluator& one) {
    time += one.interpreter().time();
    time.communication += one.lanes().times();
  });
  return time;
}

std::vector<int32_t> Evaluations::sample() const {
  return sampler_ ? sampler_->tokens() : std::vector<int32_t>();
}

}  // namespace pp
