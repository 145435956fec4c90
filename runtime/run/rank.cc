#include "runtime/run/rank.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "runtime/comm/clock.h"
#include "runtime/comm/communicators.h"
#include "runtime/plan/bind_collective.h"
#include "runtime/run/fill_states.h"
#include "schema/text.h"

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
      topology_(TopologyOf(*args_.program)),
      place_(topology_.PlaceOf(rank_)),
      compute_recorder_(rank_, place_.device),
      lane_recorder_(rank_, place_.device),
      control_(args_.transport,
               [this](int from, const ControlMessage& message) { OnMessage(from, message); }),
      last_step_(args_.steps) {}

Rank::~Rank() {
  if (compute_.joinable() || communication_.joinable()) {
    Cancel();
    Join();
  }
}

Status Rank::Setup() {
  const Program& program = *args_.program;
  BodyWalk walk;
  PP_RETURN_IF_ERROR(WalkBody(program, place_.device, &walk));
  device_ = args_.make_device({&bell_, &args_.transport->bell()});
  PP_RETURN_IF_ERROR(device_->Take(List().arena_bytes));
  std::vector<CollectiveArgs> collectives = BindCollectives();
  ReachArgs meet{.inner = args_.transport};
  if (args_.nccl != nullptr) {
    std::vector<Group> groups;
    for (const CollectiveArgs& collective : collectives) groups.push_back(collective.group);
    meet.communicators = CommunicatorsOf(program, *args_.nccl, rank_, groups);
  }
  Result<std::unique_ptr<Transport>> reach = device_->Reach(meet);
  PP_RETURN_IF_ERROR(reach.status());
  reach_ = std::move(*reach);
  body_ = Bind(program, place_.device, std::move(walk), *device_);
  MakePeerExchanger();
  executor_ = args_.make_executor(device_.get(), peers_.get());
  Result<WeightSource> weights = args_.open_weights();
  PP_RETURN_IF_ERROR(weights.status());
  if (args_.resume != nullptr) {
    PP_RETURN_IF_ERROR(LoadStates(*args_.resume, States(0)));
  } else {
    PP_RETURN_IF_ERROR(FillStates(program, place_, &*weights, device_.get()));
  }
  if (args_.record) Reserve();
  if (args_.after_bind) args_.after_bind(rank_, &body_, &collectives);
  lanes_ = std::make_unique<Lanes>(Lanes::Args{.list = &body_,
                                               .topology = &topology_,
                                               .transport = messages(),
                                               .collectives = std::move(collectives),
                                               .device = device_.get(),
                                               .recorder = args_.record ? &lane_recorder_ : nullptr,
                                               .compute_bell = &bell_,
                                               .stop = &stop_});
  interpreter_ = std::make_unique<Interpreter>(
      Interpreter::Args{.program = &program,
                        .list = &body_,
                        .lanes = lanes_.get(),
                        .device = device_.get(),
                        .executor = executor_.get(),
                        .batches = args_.batches,
                        .replica = place_.replica,
                        .steps_before = args_.steps_before,
                        .updates_before = args_.updates_before,
                        .recorder = args_.record ? &compute_recorder_ : nullptr,
                        .stop = &stop_});
  auto evaluations = Evaluations::Make(
      {.program = &program,
       .evaluator = {.place = place_,
                     .topology = &topology_,
                     .transport = messages(),
                     .device = device_.get(),
                     .executor = executor_.get(),
                     .validation = args_.validation,
                     .compute_bell = &bell_,
                     .stop = &stop_},
       .sample = args_.sample,
       .tell =
           [this](int to, int32_t token) {
             control_.Post(to, {.type = ControlMessage::Type::kToken, .code = token});
           },
       .asked_to_stop = &asked_to_stop_});
  PP_RETURN_IF_ERROR(evaluations.status());
  evaluations_ = std::move(*evaluations);
  return device_->status();
}

template <typename F>
void Rank::WaitUntil(const F& is) {
  while (!is() && !stop_.load()) {
    const uint64_t seen = bell_.rings();
    if (!is() && !stop_.load()) bell_.Wait(seen);
  }
}

RankStates Rank::States(int64_t steps) {
  return {
      .program = args_.program,
      .place = place_,
      .device = device_.get(),
      .newest = [this, steps](int stage, int pipe) { return NewestWeights(stage, pipe, steps); },
      .on_piece = [this] { ++other_progress_; }};
}

// Whether somebody has asked to stop behind this step, rank 0 says when it lets the next one go.
bool Rank::IsLast(int64_t number) {
  return rank_ == 0 ? number == last_step_.load() : !MayBegin(number + 1);
}

// The validation behind step `number`, where there is one; its loss goes with the step's report.
Status Rank::Evaluate(int64_t number) {
  if (!evaluations_->validates()) return {};
  const int64_t every = args_.validation.every, step = args_.steps_before + number;
  if (!(every > 0 && step % every == 0) && !IsLast(number)) return {};
  // What an evaluation receives may lie where the step still reads.
  const Ticket step_end = device_->compute().last();
  WaitUntil([&] { return device_->compute().Done(step_end); });
  if (stop_.load()) return {};
  const double begin = SteadySeconds();
  PP_RETURN_IF_ERROR(evaluations_->Validate(
      [&](int stage, int pipe) { return NewestWeights(stage, pipe, number); }, &val_loss_));
  PP_RETURN_IF_ERROR(device_->status());
  evaluated_ = number;
  last_end_ += SteadySeconds() - begin;  // it is no part of a step
  return {};
}

// This rank's part of the checkpoint behind step `number`, where there is one. Its report comes
// later, so that who has all reports knows that all parts are there.
Status Rank::Save(int64_t number) {
  if (args_.save.empty()) return {};
  const int64_t step = args_.steps_before + number;
  const bool due = args_.save_every > 0 && step % args_.save_every == 0;
  if (!(due || IsLast(number)) || stop_.load()) return {};
  const std::string folder = SavingFolder(args_.save, step);
  std::error_code error;
  std::filesystem::create_directory(folder, error);  // whoever is first
  try {
    PP_RETURN_IF_ERROR(SaveStates(States(number), ShardPath(folder, rank_)));
    return device_->status();
  } catch (const std::bad_alloc&) {
    return Status::Failed(folder + ": out of memory");
  }
}

void Rank::MakePeerExchanger() {
  const Program& program = *args_.program;
  if (topology_.tp == 1) return;
  PeerExchanger::Args peers{.all = PeerExchanges(*program.job),
                            .transport = messages(),
                            .device = device_.get(),
                            .compute_bell = &bell_,
                            .stop = &stop_};
  for (int index = 0; index < topology_.tp; ++index)
    peers.group.push_back(topology_.RankOf({place_.replica, place_.device, index}));
  const Region* scratch = FindRegion(List(), Kind::kScratch, -1, -1);
  const int stage = program.StagesOf(place_.device).front();
  peers.exchange = device_->at(scratch->offset + LayoutStage(*program.job, stage).exchange);
  peers_ = std::make_unique<PeerExchanger>(std::move(peers));
}

std::vector<CollectiveArgs> Rank::BindCollectives() const {
  std::vector<CollectiveArgs> collectives;
  for (const Instruction& i : List().body)
    if (Info(i.op).lane == Lane::kReduce)
      collectives.push_back(BindCollective(*args_.program, topology_, rank_, i, *device_));
  return collectives;
}

void Rank::Reserve() {
  const std::vector<Instruction>& body = List().body;
  const auto all = static_cast<int64_t>(body.size());
  const auto computed = std::count_if(body.begin(), body.end(), [](const Instruction& i) {
    return Info(i.op).lane == Lane::kCompute;
  });
  compute_recorder_.Reserve(computed, all, args_.steps);
  lane_recorder_.Reserve(all - computed, all, args_.steps);
}

Status Rank::BeginSetup() {
  // Both threads now: a machine that has none left says so before the first step.
  try {
    compute_ = std::thread([this] { ComputeMain(); });
    communication_ = std::thread([this] { CommunicationMain(); });
  } catch (const std::system_error& error) {
    return Status::Failed(fmt::format("rank {}: no thread: {}", rank_, error.what()));
  }
  return {};
}

void Rank::Start() {
  gate_.store(Gate::kOpen);
  bell_.Ring();
  args_.transport->bell().Ring();
}

void Rank::Cancel() {
  if (gate_.load() == Gate::kClosed) gate_.store(Gate::kCancelled);
  stop_.store(true);
  bell_.Ring();
  args_.transport->bell().Ring();
}

void Rank::Join() {
  if (compute_.joinable()) compute_.join();
  if (communication_.joinable()) communication_.join();
  if (device_) device_->Finish();  // it may still copy from another rank's memory
}

void Rank::ComputeMain() {
  try {
    setup_status_ = Setup();
  } catch (const std::bad_alloc&) {
    setup_status_ = Status::Failed(fmt::format("rank {}: out of memory", rank_));
  } catch (const std::system_error& error) {
    setup_status_ = Status::Failed(fmt::format("rank {}: no thread: {}", rank_, error.what()));
  }
  ready_.store(true);
  args_.news->Ring();
  if (PassGate(bell_)) {
    try {
      RunSteps();
    } catch (const std::bad_alloc&) {  // steps take none, but what is between them may
      Fail(Status::Failed("out of memory"));
    }
    computed_.store(true);
    args_.transport->bell().Ring();
    args_.news->Ring();
  }
  if (device_) device_->Finish();
  executor_.reset();  // where it was made
}

// Whether the steps begin; waits for the answer.
bool Rank::PassGate(Bell& bell) {
  while (gate_.load() == Gate::kClosed) {
    const uint64_t seen = bell.rings();
    if (gate_.load() == Gate::kClosed) bell.Wait(seen);
  }
  return gate_.load() == Gate::kOpen;
}

void Rank::RunSteps() {
  WaitUntil([this] { return connected_.load(); });
  last_end_ = SteadySeconds();
  const int64_t behind = body_.overlaps ? 1 : 0;  // an iteration ends the step before it
  for (int64_t number = 1;; ++number) {
    Iteration iteration{number, body_.overlaps && number == 1 ? Part::kAhead : Part::kAll};
    if (!MayBegin(number)) {
      if (behind == 0 || number == 1 || stop_.load()) break;
      iteration.part = Part::kRest;
    }
    Status status = RunIteration(iteration);
    if (status.ok()) status = device_->status();
    if (status.ok() && !stop_.load() && number > behind) status = Save(number - behind);
    // Where steps overlap, the memory is free only behind the last one.
    const bool over = behind == 0 || iteration.part == Part::kRest;
    if (status.ok() && !stop_.load() && over) status = Evaluate(number - behind);
    if (!status.ok()) Fail(status.In("rank " + std::to_string(rank_)));
    if (stop_.load()) return;
    ReportUpTo(number - behind, number - behind - 1);
    if (iteration.part == Part::kRest) break;
  }
  if (!stop_.load()) ReportUpTo(last_step_.load(), last_step_.load());
  if (stop_.load() || last_step_.load() < args_.steps) return;
  Status status = evaluations_->Sample(
      [this](int stage, int pipe) { return NewestWeights(stage, pipe, done_steps_); });
  if (status.ok()) status = device_->status();
  if (!status.ok()) Fail(status.In("rank " + std::to_string(rank_)));
}

Status Rank::RunIteration(const Iteration& iteration) {
  if (args_.observer == nullptr) return interpreter_->Run(iteration);
  args_.observer->Enter(rank_, iteration.number);
  Status status = interpreter_->Run(iteration);
  args_.observer->Leave(rank_, iteration.number);
  return status;
}

// Reports the steps that the device is done with, of those up to `finished`, and waits for those up
// to `at_least`.
void Rank::ReportUpTo(int64_t finished, int64_t at_least) {
  while (done_steps_ < finished) {
    const StepResult& result = interpreter_->result(done_steps_ + 1);
    auto done = [&] { return device_->compute().Done(result.end); };
    if (!done() && done_steps_ >= at_least) return;
    WaitUntil(done);
    if (stop_.load()) return;
    // A device that has failed is done with everything: what it gave is nothing.
    if (const Status status = device_->status(); !status.ok()) {
      Fail(status.In("rank " + std::to_string(rank_)));
      return;
    }
    ++done_steps_;
    Report(result);
  }
}

bool Rank::MayBegin(int64_t step) {
  auto may = [&] {
    if (step > last_step_.load()) return true;
    return rank_ == 0 ? consumed_.load() >= step - kReportsAhead : go_step_.load() >= step;
  };
  WaitUntil(may);
  if (stop_.load() || step > last_step_.load()) return false;
  if (rank_ == 0 && step < args_.steps) {
    if (asked_to_stop_.load()) last_step_.store(std::min(last_step_.load(), step));
    control_.PostAll(
        {.type = ControlMessage::Type::kGo, .step = step + 1, .last = last_step_.load()});
  }
  return true;
}

void Rank::Report(const StepResult& result) {
  const double now = SteadySeconds();
  ControlMessage message{.type = ControlMessage::Type::kReport,
                         .step = result.step,
                         .last = asked_to_stop_.load(),
                         .peak_bytes = device_->HighWater() + executor_->bytes(),
                         .grad_norm = result.norm,
                         .seconds = now - std::exchange(last_end_, now)};
  message.evaluated = evaluations_->validates() && evaluated_ == result.step;
  // All tensor parallel peers have the same losses.
  if (message.evaluated && place_.index == 0) message.val_loss = val_loss_;
  for (size_t m = 0; m < result.losses.size() && place_.index == 0; ++m) {
    if (result.made_by[m] < 0) continue;
    message.loss += result.losses[m];
    if (std::isfinite(result.losses[m]) || message.bad_micro >= 0) continue;
    message.bad_micro = static_cast<int32_t>(m);
    message.bad_loss = result.losses[m];
    SetText(fmt::format("'{}', instruction {}", ToText(body_.list[result.made_by[m]]),
                        result.made_by[m]),
            &message);
  }
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
    case ControlMessage::Type::kToken:
      return evaluations_->Hear(message.code);
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

int64_t Rank::executed() const {
  return interpreter_->executed() + evaluations_->executed() + other_progress_.load();
}

std::string Rank::CurrentText() {
  if (body_.list.empty()) return "";
  {
    std::lock_guard<std::mutex> lock(doing_mutex_);
    if (!doing_.empty()) return doing_;
  }
  const Instruction* current = evaluations_->current();
  if (current == nullptr) current = &body_.list[interpreter_->current()];
  return ToText(*current);
}

TimeSpent Rank::time() const {
  TimeSpent time = interpreter_->time();
  time.communication = lanes_->times();
  time += evaluations_->time();
  const QueueTime queue = device_->compute().time();
  time.kernels = queue.busy;
  time.own -= queue.processor;
  if (peers_) time.kernels -= peers_->waited(), time.waiting += peers_->waited();
  return time;
}

// Of the newest weights, from the beginning of their region, behind so many steps of this run.
int64_t Rank::NewestWeights(int stage, int pipe, int64_t steps) const {
  const Region* region = FindRegion(List(), Kind::kWeights, stage, pipe);
  if (region == nullptr) return 0;
  const int64_t one = LayoutStage(*args_.program->job, stage).weights_bytes;
  const auto updates = std::count_if(List().body.begin(), List().body.end(), [&](auto& i) {
    return i.op == Op::kStep && i.stage == stage && (i.pipe < 0 || i.pipe == pipe);
  });
  return steps * updates % (region->bytes / one) * one;
}

void Rank::CopyWeights(int stage, int64_t offset, int64_t bytes, void* out) {
  const StageCall copy = BindStage(*args_.program, place_.device, stage, 0, *device_);
  const std::byte* newest = copy.weights + NewestWeights(stage, 0, done_steps_);
  const Ticket ticket = device_->compute().CopyOut(out, newest + offset, bytes);
  while (!device_->compute().Done(ticket)) sched_yield();
}

void Rank::AppendEvents(std::vector<Event>* events) const {
  compute_recorder_.AppendTo(events);
  lane_recorder_.AppendTo(events);
}

void Rank::CommunicationMain() {
  prctl(PR_SET_TIMERSLACK, 1000);  // this thread's naps end within a microsecond
  if (!PassGate(args_.transport->bell())) return;
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
      if (parting == 0) parting = SteadySeconds() + kPartingSeconds;
      if (SteadySeconds() > parting) break;
    }
    quiet_tests_ = moved ? 0 : quiet_tests_ + 1;
    if (!moved) Nap(seen);
  }
  ended_.store(true);
  args_.news->Ring();
}

Status Rank::Communicate(bool* moved) {
  const int64_t step = lanes_->iteration();
  if (args_.observer != nullptr) args_.observer->Enter(rank_, step);
  Status status = control_.Advance(moved);
  const auto goes_on = [&] { return status.ok() && !stop_.load(); };
  if (goes_on() && !connected_.load()) status = Connect();
  if (connected_.load()) {
    if (goes_on() && peers_) status = peers_->Advance(moved);
    if (goes_on()) status = lanes_->Advance(moved);
    if (goes_on()) status = evaluations_->Advance(moved);
  }
  if (args_.observer != nullptr) args_.observer->Leave(rank_, step);
  return status;
}

Status Rank::Connect() {
  bool over = false;
  std::string doing;
  PP_RETURN_IF_ERROR(messages()->Connect(&over, &doing));
  {
    std::lock_guard<std::mutex> lock(doing_mutex_);
    if (over) doing.clear();
    if (doing != doing_) ++other_progress_;
    doing_ = std::move(doing);
  }
  if (!over) return {};
  connected_.store(true);
  bell_.Ring();
  return {};
}

void Rank::Nap(uint64_t seen) {
  Transport& transport = *messages();
  const auto sleep = [&](std::chrono::nanoseconds longest) {
    transport.bell().WaitFor(seen, transport.MaySleep(longest));
  };
  const bool waiting =
      lanes_->waiting() || (peers_ && peers_->waiting()) || evaluations_->waiting();
  const bool in_flight =
      lanes_->in_flight() || (peers_ && peers_->under_way()) || evaluations_->in_flight();
  if (stop_.load()) {
    sleep(kIdleNap);
  } else if (!transport.polls()) {
    sleep(std::chrono::nanoseconds::max());
  } else if (waiting && quiet_tests_ < kTestsInARow) {
    sched_yield();
  } else if (waiting) {
    sleep(kWaitNap);
  } else {
    sleep(in_flight ? kBusyNap : kIdleNap);
  }
}

}  // namespace pp
