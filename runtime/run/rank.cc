#include "runtime/run/rank.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "schema/text.h"
#include "schema/verify.h"

namespace pp {
namespace {

using std::chrono::microseconds;

// How long the communication thread sleeps between two tests where the transport polls:
// while the compute thread waits (after a few tests in a row), while it computes, and while
// nothing but control messages may come. There may be more ranks than cores, and who spins
// takes the core from one who computes.
constexpr int kTestsInARow = 5;
constexpr microseconds kWaitNap{60};
constexpr microseconds kBusyNap{150};
constexpr microseconds kIdleNap{2000};
// After a failure the other ranks get so long to say good-bye.
constexpr double kPartingSeconds = 3;

void SetText(const std::string& text, ControlMessage* message) {
  const size_t length = std::min(text.size(), sizeof(message->text) - 1);
  std::memcpy(message->text, text.data(), length);
}

}  // namespace

Rank::Rank(Args args)
    : args_(std::move(args)),
      rank_(args_.transport->rank()),
      compute_recorder_(rank_, rank_),
      lane_recorder_(rank_, rank_),
      control_(args_.transport,
               [this](int from, const ControlMessage& message) { OnMessage(from, message); }),
      last_step_(args_.optimizer.steps) {}

Rank::~Rank() {
  if (compute_.joinable() || communication_.joinable()) {
    Cancel();
    Join();
  }
}

Status Rank::Setup() {
  const Program& program = *args_.program;
  const int device = rank_;
  const DeviceList& list = program.lists[device];
  if (!list.prologue.empty() || !list.epilogue.empty())
    return Status::Invalid("the plan overlaps steps (this version runs plans with a body alone)");
  WaitsFor waits_for;
  PP_RETURN_IF_ERROR(VerifyDevice(program, device, Depth::kPlan, &waits_for));
  Result<Arena> arena = Arena::Take(list.arena_bytes);
  PP_RETURN_IF_ERROR(arena.status());
  arena_ = std::make_unique<Arena>(std::move(*arena));
  body_ = Bind(program, device, list.body, std::move(waits_for), *arena_);
  backend_ = args_.make_backend();
  for (int stage : program.StagesOf(device))
    PP_RETURN_IF_ERROR(backend_->Init(BindStage(program, device, stage, *arena_)));
  if (args_.record) {
    const auto all = static_cast<int64_t>(list.body.size());
    const auto computed = std::count_if(list.body.begin(), list.body.end(), [](const auto& i) {
      return Info(i.op).lane == Lane::kCompute;
    });
    compute_recorder_.Reserve(computed, all, args_.optimizer.steps);
    lane_recorder_.Reserve(all - computed, all, args_.optimizer.steps);
  }
  tied_ = std::make_unique<TiedSum>(program, device, *arena_, args_.transport);
  norm_ = std::make_unique<NormGather>(program, device, *arena_, args_.transport);
  lanes_ = std::make_unique<Lanes>(Lanes::Args{&body_, args_.transport, tied_.get(), norm_.get(),
                                               args_.record ? &lane_recorder_ : nullptr, &bell_});
  const Region* norm = FindRegion(list, Kind::kNorm, -1);
  interpreter_ = std::make_unique<Interpreter>(Interpreter::Args{
      .program = &program,
      .list = &body_,
      .lanes = lanes_.get(),
      .backend = backend_.get(),
      .optimizer = args_.optimizer,
      .norm_blocks =
          norm == nullptr ? nullptr : reinterpret_cast<double*>(arena_->at(norm->offset)),
      .recorder = args_.record ? &compute_recorder_ : nullptr,
      .bell = &bell_,
      .stop = &stop_});
  return {};
}

void Rank::BeginSetup() {
  compute_ = std::thread([this] { ComputeMain(); });
}

Status Rank::FinishSetup() {
  while (!ready_.load()) {
    const uint64_t seen = args_.news->rings();
    if (ready_.load()) break;
    args_.news->Wait(seen);
  }
  return setup_status_;
}

void Rank::Start() {
  communication_ = std::thread([this] { CommunicationMain(); });
  gate_.store(Gate::kOpen);
  bell_.Ring();
}

void Rank::Cancel() {
  if (gate_.load() == Gate::kClosed) gate_.store(Gate::kCancelled);
  stop_.store(true);
  bell_.Ring();
}

void Rank::Join() {
  if (compute_.joinable()) compute_.join();
  if (communication_.joinable()) communication_.join();
}

void Rank::ComputeMain() {
  setup_status_ = Setup();
  ready_.store(true);
  args_.news->Ring();
  while (gate_.load() == Gate::kClosed) {
    const uint64_t seen = bell_.rings();
    if (gate_.load() != Gate::kClosed) break;
    bell_.Wait(seen);
  }
  if (gate_.load() == Gate::kOpen) {
    RunSteps();
    computed_.store(true);
    args_.transport->bell().Ring();
    args_.news->Ring();
  }
  backend_.reset();  // where it was made
}

void Rank::RunSteps() {
  for (int64_t step = 1; step <= args_.optimizer.steps && MayBegin(step); ++step) {
    const double start = Now();
    const Status status = RunStep(step);
    if (!status.ok()) Fail(status.In("rank " + std::to_string(rank_)));
    if (stop_.load()) return;
    done_steps_ = step;
    Report(step, Now() - start);
  }
}

Status Rank::RunStep(int64_t step) {
  if (args_.observer == nullptr) return interpreter_->Run(step);
  args_.observer->Enter(rank_, step);
  Status status = interpreter_->Run(step);
  args_.observer->Leave(rank_, step);
  return status;
}

bool Rank::MayBegin(int64_t step) {
  auto may = [&] {
    return rank_ == 0 ? consumed_.load() >= step - kReportsAhead : go_step_.load() >= step;
  };
  while (!may() && !stop_.load()) {
    const uint64_t seen = bell_.rings();
    if (may() || stop_.load()) break;
    bell_.Wait(seen);
  }
  if (stop_.load() || step > last_step_.load()) return false;
  if (rank_ == 0 && step < args_.optimizer.steps) {
    if (asked_to_stop_.load()) last_step_.store(std::min(last_step_.load(), step));
    control_.PostAll(
        {.type = ControlMessage::Type::kGo, .step = step + 1, .last = last_step_.load()});
  }
  return true;
}

double Rank::LossSum() const {
  const Program& program = *args_.program;
  const Region* region = FindRegion(program.lists[rank_], Kind::kLoss, program.stages - 1);
  if (region == nullptr) return 0;
  const auto* losses = reinterpret_cast<const double*>(arena_->at(region->offset));
  double sum = 0;
  for (int m = 0; m < program.microbatches; ++m) sum += losses[m];
  return sum;
}

void Rank::Report(int64_t step, double seconds) {
  const ControlMessage message{.type = ControlMessage::Type::kReport,
                               .step = step,
                               .last = asked_to_stop_.load(),
                               .peak_bytes = arena_->HighWater(),
                               .loss = LossSum(),
                               .grad_norm = interpreter_->grad_norm(),
                               .seconds = seconds};
  if (rank_ == 0) {
    args_.on_message(0, message);
    args_.news->Ring();
  } else {
    control_.Post(0, message);
  }
}

void Rank::Consumed(int64_t step) {
  consumed_.store(step);
  bell_.Ring();
}

bool Rank::Fail(const Status& status) {
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    if (stop_.load()) return false;
    failure_ = status;
    ControlMessage message{.type = ControlMessage::Type::kFail,
                           .code = static_cast<int32_t>(status.code())};
    SetText(status.message(), &message);
    // Before anyone can see the stop and say good-bye: nothing goes after that.
    control_.PostAll(message);
    stop_.store(true);
  }
  bell_.Ring();
  args_.transport->bell().Ring();
  args_.news->Ring();
  return true;
}

void Rank::OnMessage(int from, const ControlMessage& message) {
  switch (message.type) {
    case ControlMessage::Type::kGo:
      last_step_.store(message.last);
      go_step_.store(message.step);
      bell_.Ring();
      return;
    case ControlMessage::Type::kFail:
      Fail(message.code == static_cast<int32_t>(Code::kInvalid) ? Status::Invalid(message.text)
                                                                : Status::Failed(message.text));
      return;
    case ControlMessage::Type::kReport:
      if (message.last != 0) AskToStop();
      args_.on_message(from, message);
      break;
    case ControlMessage::Type::kSign:
    case ControlMessage::Type::kBye:
      args_.on_message(from, message);
      break;
  }
  args_.news->Ring();
}

void Rank::PostSign() {
  ControlMessage message{.type = ControlMessage::Type::kSign, .executed = executed()};
  SetText(CurrentText(), &message);
  control_.PostAll(message);
  if (rank_ == 0) args_.on_message(0, message);
}

int64_t Rank::executed() const { return interpreter_->executed(); }

std::string Rank::CurrentText() const {
  if (body_.list.empty()) return "";
  return ToText(body_.list[interpreter_->current()]);
}

void Rank::AppendEvents(std::vector<Event>* events) const {
  for (const Recorder* recorder : {&compute_recorder_, &lane_recorder_})
    events->insert(events->end(), recorder->events().begin(), recorder->events().end());
}

void Rank::CommunicationMain() {
  prctl(PR_SET_TIMERSLACK, 1000);  // this thread's naps end within a microsecond
  double parting = 0;
  bool said_bye = false;
  while (true) {
    const uint64_t seen = args_.transport->bell().rings();
    bool moved = false;
    const Status status = Communicate(&moved);
    if (!status.ok()) Fail(status);
    // Rank 0 says it last: until then somebody may fail, which it passes on.
    if (!said_bye && computed_.load() && (rank_ != 0 || stop_.load() || control_.others_left())) {
      control_.PostAll({.type = ControlMessage::Type::kBye});
      said_bye = true;
    }
    left_cleanly_ = said_bye && control_.closed();
    if (left_cleanly_) break;
    if (stop_.load()) {
      if (parting == 0) parting = Now() + kPartingSeconds;
      if (Now() > parting) break;
    }
    quiet_tests_ = moved ? 0 : quiet_tests_ + 1;
    if (!moved) Nap(seen);
  }
  ended_.store(true);
  args_.news->Ring();
}

Status Rank::Communicate(bool* moved) {
  const int64_t step = lanes_->step();
  if (args_.observer != nullptr) args_.observer->Enter(rank_, step);
  Status status = control_.Advance(moved);
  if (status.ok() && !stop_.load()) status = lanes_->Advance(moved);
  if (args_.observer != nullptr) args_.observer->Leave(rank_, step);
  return status;
}

void Rank::Nap(uint64_t seen) {
  Transport& transport = *args_.transport;
  const auto sleep = [&](std::chrono::nanoseconds longest) {
    transport.bell().WaitFor(seen, transport.MaySleep(longest));
  };
  if (stop_.load()) {
    sleep(kIdleNap);
  } else if (!transport.polls()) {
    sleep(std::chrono::nanoseconds::max());
  } else if (interpreter_->waiting() && quiet_tests_ < kTestsInARow) {
    sched_yield();
  } else if (interpreter_->waiting()) {
    sleep(kWaitNap);
  } else {
    sleep(lanes_->in_flight() ? kBusyNap : kIdleNap);
  }
}

}  // namespace pp
