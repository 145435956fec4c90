#include "runtime/run/sampler.h"

#include <algorithm>
#include <utility>

#include "schema/routines.h"

namespace pp {

SampledText::SampledText(const SampleOptions& options, const Args& args)
    : Batches(args),
      sequence_length_(args.sequence_length),
      batch_(args.micro_batch_size),
      prompt_(static_cast<int64_t>(options.prompt.size())),
      temperature_(options.temperature),
      tokens_(options.prompt),
      size_(prompt_) {
  tokens_.resize(prompt_ + options.count);
}

int64_t SampledText::Begin() const { return std::max<int64_t>(0, size_ - sequence_length_); }

Status SampledText::Inputs(int64_t, int, int, int32_t* inputs) const {
  std::fill_n(inputs, int64_t{batch_} * sequence_length_, 0);
  std::copy(tokens_.begin() + Begin(), tokens_.begin() + size_, inputs);
  return {};
}

Status SampledText::Targets(int64_t, int, int, int32_t* targets) const {
  std::fill_n(targets, int64_t{batch_} * sequence_length_, -1);
  return {};
}

Draw SampledText::DrawAt(int64_t) const {
  return {static_cast<int32_t>(size_ - Begin() - 1), static_cast<uint32_t>(added()), temperature_};
}

void SampledText::Add(int32_t token) {
  tokens_[size_] = token;
  size_.fetch_add(1, std::memory_order_release);
}

namespace {

// The first of the micro-batches with the longest sequences.
int SampledMicro(const Program& program) {
  const std::vector<int32_t>& shape_of = program.shape_of;
  const auto shorter = [&](int32_t a, int32_t b) {
    const auto& runs = program.job->shapes.runs;
    return runs[a].extent.tokens < runs[b].extent.tokens;
  };
  return static_cast<int>(std::max_element(shape_of.begin(), shape_of.end(), shorter) -
                          shape_of.begin());
}

Job JobOf(const Program& program) {
  return program.job->OfShape(program.ShapeOf(SampledMicro(program)));
}

}  // namespace

Sampler::Sampler(const Args& args)
    : args_(args),
      text_(args.options, {.replicas = 1,
                           .microbatches = 1,
                           .micro_batch_size = JobOf(*args.program).micro_batch_size,
                           .sequence_length = JobOf(*args.program).sequence_length}) {}

Result<std::unique_ptr<Sampler>> Sampler::Make(const Args& args) {
  std::unique_ptr<Sampler> made(new Sampler(args));
  if (!Samples(*args.program, args.runner.place.device)) return made;
  Runner::Args runner = args.runner;
  runner.batches = &made->text_;
  const auto added = args.runners->Add(
      MicroBatchOf(RoutineOf(*args.program, kEvaluationRoutine), SampledMicro(*args.program)),
      runner);
  PP_RETURN_IF_ERROR(added.status());
  made->runner_ = *added;
  return made;
}

Status Evaluate(Runners* runners, Runner* runner, const Newest& newest, int64_t count, double* loss,
                bool* made) {
  runner->Use(newest);
  *loss = 0;
  *made = false;
  for (int64_t batch = 0; batch < count; ++batch) {
    const int64_t number = runner->runs() + 1;
    PP_RETURN_IF_ERROR(runners->Run(runner, number));
    runner->Settle();
    if (runner->stopped()) return {};
    const StepResult& result = runner->result(number);
    for (size_t m = 0; m < result.losses.size(); ++m) {
      *loss += result.losses[m];
      *made |= result.made_by[m] >= 0;
    }
  }
  return {};
}

bool Samples(const Program& program, int device) {
  const std::vector<int32_t>& devices =
      program.pipes[program.pipe_of[SampledMicro(program)]].device_of;
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

void Sampler::Hear(int32_t token) {
  if (token < 0) {
    ended_.store(true);
  } else {
    text_.Add(token);
  }
  args_.runner.compute_bell->Ring();
}

Status Sampler::Run(const Newest& newest) {
  const std::atomic<bool>& stop = *args_.runner.stop;
  Bell& bell = *args_.runner.compute_bell;
  const auto over = [&] { return stop.load() || ended_.load(); };
  for (int64_t number = 0; number < args_.options.count && !over(); ++number) {
    double token = 0;
    bool drawn = false;
    if (runner_ != nullptr)
      PP_RETURN_IF_ERROR(Evaluate(args_.runners, runner_, newest, 1, &token, &drawn));
    if (stop.load()) return {};
    if (drawn && args_.runner.place.index == 0) {
      if (token < 0) return Status::Failed("sample: the logits are not finite");
      args_.on_own(static_cast<int32_t>(token));
    }
    bell.WaitUntil([&] { return text_.added() > number || over(); });
  }
  return {};
}

}  // namespace pp
