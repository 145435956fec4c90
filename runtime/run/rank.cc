#include "runtime/run/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "runtime/comm/clock.h"
#include "runtime/comm/communicators.h"
#include "runtime/comm/host_memory.h"
#include "runtime/plan/bind_collective.h"
#include "runtime/run/fill_states.h"
#include "runtime/run/send_ports.h"
#include "schema/model/workspace.h"
#include "schema/nccl/queues.h"
#include "schema/routines.h"
#include "schema/text.h"

namespace pp {

Rank::Rank(Args args)
    : args_(std::move(args)),
      rank_(args_.transport->rank()),
      topology_(TopologyOf(*args_.program)),
      place_(topology_.PlaceOf(rank_)),
      control_(args_.transport,
               [this](int from, const ControlMessage& message) { OnMessage(from, message); }) {
  signals_.last_step = args_.steps;
  losses_.resize(topology_.ranks());
  least_loss_ = args_.least_loss;
}

Rank::~Rank() {
  if (compute_.joinable() || communication_.joinable()) {
    Cancel();
    Join();
  }
  // The device may still write times for the lanes, and reads what the transport has abandoned.
  device_transport_.reset();
  device_.reset();
}

Status Rank::Setup() {
  const Program& program = *args_.program;
  BodyWalk walk;
  PP_RETURN_IF_ERROR(WalkBody(program, place_.device, &walk));
  PP_RETURN_IF_ERROR(
      args_.transport->Reserve(SendPorts(program, rank_)).In(fmt::format("rank {}", rank_)));
  device_ = args_.make_device({&bell_, &args_.transport->bell()});
  PP_RETURN_IF_ERROR(device_->Allocate(List().arena_bytes));
  PP_RETURN_IF_ERROR(MakeDeviceTransport());
  MakePeerExchanger();
  executor_ = args_.make_executor(device_.get(), peers_.get(), &signals_.operators);
  PP_RETURN_IF_ERROR(FillMemory());
  PP_RETURN_IF_ERROR(MakeRunners(std::move(walk)));
  return device_->status();
}

// The transport to and from the device's memory.
Status Rank::MakeDeviceTransport() {
  Links links{.inner = args_.transport};
  if (args_.nccl != nullptr) {
    const Workspace workspace = WorkspaceOf(*args_.program->job);
    PP_CHECK(workspace.product_bytes >= kSpareBytes);
    links.spare =
        device_->at(FindRegion(List(), Kind::kWorkspace, -1, -1)->offset + workspace.products);
    std::vector<Group> groups;
    for (const CollectiveArgs& collective :
         BindCollectives(*args_.program, topology_, rank_, *device_))
      groups.push_back(collective.group);
    links.communicators = CommunicatorsOf(*args_.program, *args_.nccl, rank_, groups);
    links.library_bytes = nccl::BytesOf(CountPeers(links.communicators));
  }
  Result<std::unique_ptr<Transport>> transport = device_->MakeTransport(links);
  PP_RETURN_IF_ERROR(transport.status());
  device_transport_ = std::move(*transport);
  return {};
}

// Fills the arena with new weights, those of a file, or the state of a checkpoint.
Status Rank::FillMemory() {
  Result<WeightSource> weights = args_.open_weights();
  PP_RETURN_IF_ERROR(weights.status());
  PP_RETURN_IF_ERROR(args_.resume != nullptr
                         ? LoadStates(*args_.resume, States(0))
                         : FillStates(*args_.program, place_, &*weights, device_.get()));
  FillLossScale(*args_.program, place_.device, args_.loss_scale, device_.get());
  return {};
}

// Without program and data.
Runner::Args Rank::RunnerArgs() {
  return {.place = place_,
          .topology = &topology_,
          .transport = messages(),
          .device = device_.get(),
          .executor = executor_.get(),
          .compute_bell = &bell_,
          .stop = &signals_.stop};
}

Status Rank::MakeRunners(BodyWalk walk) {
  const Program& program = *args_.program;
  Runner::Args step = RunnerArgs();
  step.batches = args_.batches;
  step.steps_before = args_.steps_before;
  step.updates_before = args_.updates_before;
  if (args_.after_bind)
    step.after_bind = [this](BoundList* list, std::vector<CollectiveArgs>* collectives) {
      args_.after_bind(rank_, list, collectives);
    };
  const auto record = [&](int routine, const std::vector<Instruction>& list) {
    if (!args_.options->record) return;
    Recorders& recorders = recorders_.emplace_back(
        Recorders{{rank_, place_.device, routine}, {rank_, place_.device, routine}});
    const auto all = static_cast<int64_t>(list.size());
    const auto computed = std::count_if(list.begin(), list.end(), [](const Instruction& i) {
      return Info(i.op).lane == Lane::kCompute;
    });
    recorders.compute.Reserve(computed, all, args_.steps);
    recorders.lanes.Reserve(all - computed, all, args_.steps);
    step.compute_recorder = &recorders.compute, step.lane_recorder = &recorders.lanes;
  };
  step.program = &program;
  record(-1, List().body);
  steps_of_[program.microbatches] = runners_.Add(step, std::move(walk));
  for (size_t r = 0; r < program.routines.size(); ++r) {
    if (Evaluates(program.routines[r])) continue;
    record(static_cast<int>(r), List().routines[r]);
    const auto added = runners_.Add(RoutineOf(program, r), step);
    PP_RETURN_IF_ERROR(added.status());
    steps_of_[program.routines[r].microbatches] = *added;
  }
  auto evaluations = Evaluations::Make(
      {.program = args_.program,
       .runners = &runners_,
       .runner = RunnerArgs(),
       .validation = args_.validation,
       .sample = args_.sample,
       .tell =
           [this](int to, int32_t token) {
             control_.Post(to, {.type = ControlMessage::Type::kToken, .code = token});
           },
       .asked_to_stop = &signals_.asked_to_stop});
  PP_RETURN_IF_ERROR(evaluations.status());
  evaluations_ = std::move(*evaluations);
  return {};
}

void Rank::MakePeerExchanger() {
  const Program& program = *args_.program;
  if (topology_.tp == 1) return;
  PeerExchanger::Args peers{.group = topology_.PeersOf(place_),
                            .all = PeerExchanges(*program.job),
                            .exchange = nullptr,
                            .piece = MostExchangePiece(program.job->backend),
                            .transport = messages(),
                            .device = device_.get(),
                            .compute_bell = &bell_,
                            .stop = &signals_.stop};
  const Region* scratch = FindRegion(List(), Kind::kScratch, -1, -1);
  const int stage = program.StagesOf(place_.device).front();
  peers.exchange = device_->at(scratch->offset + LayoutStage(*program.job, stage).exchange);
  peers_ = std::make_unique<PeerExchanger>(std::move(peers));
}

Status Rank::BeginSetup() {
  // Both threads are started now, so that running out of threads is an error before the first step.
  try {
    compute_ = std::thread([this] { ComputeMain(); });
    communication_ = std::thread([this] { CommunicationMain(); });
  } catch (const std::system_error& error) {
    return Status::Failed(
        fmt::format("rank {}: no thread: {}{}", rank_, error.what(), LimitText()));
  }
  return {};
}

void Rank::Start() {
  signals_.gate.store(Gate::kOpen);
  bell_.Ring();
  args_.transport->bell().Ring();
}

void Rank::Cancel() {
  if (signals_.gate.load() == Gate::kClosed) signals_.gate.store(Gate::kCancelled);
  signals_.stop.store(true);
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
    setup_status_ = OutOfMemory();
  } catch (const std::system_error& error) {
    setup_status_ =
        Status::Failed(fmt::format("rank {}: no thread: {}{}", rank_, error.what(), LimitText()));
  }
  signals_.ready.store(true);
  args_.news->Ring();
  if (PassGate(bell_)) {
    try {
      RunSteps();
    } catch (const std::bad_alloc&) {
      Fail(OutOfMemory());
    }
    steps_.end = SteadySeconds();
    signals_.computed.store(true);
    args_.transport->bell().Ring();
    args_.news->Ring();
  }
  if (device_) device_->Finish();
  executor_.reset();  // on the thread that made it
}

// The device's own error, if it has one.
Status Rank::OutOfMemory() const {
  const Status status = device_status();
  return (status.ok() ? Status::Failed("out of memory" + LimitText()) : status)
      .In(fmt::format("rank {}", rank_));
}

// Whether the steps begin; waits for the answer.
bool Rank::PassGate(Bell& bell) {
  bell.WaitUntil([this] { return signals_.gate.load() != Gate::kClosed; });
  return signals_.gate.load() == Gate::kOpen;
}

bool Rank::Fail(const Status& status) {
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    if (signals_.stop.load()) return false;
    failure_ = status;
    ControlMessage message{.type = ControlMessage::Type::kFail,
                           .code = static_cast<int32_t>(status.code())};
    message.SetText(status.message());
    // Before any thread can see the stop and post kBye: nothing is sent after that.
    control_.PostAll(message);
    signals_.stop.store(true);
  }
  bell_.Ring();
  args_.transport->bell().Ring();
  args_.news->Ring();
  return true;
}

int64_t Rank::executed() const {
  return runners_.executed() + signals_.operators.load() + signals_.other_progress.load();
}

// Of a WAIT for a message it says whose: "WAIT grad s0 m1 from rank 1".
void Rank::SayWhere(ControlMessage* heartbeat) {
  const Runner* runner = runners_.running();
  if (runner == nullptr) return;
  {
    std::lock_guard<std::mutex> lock(doing_mutex_);
    if (!doing_.empty()) return heartbeat->SetText(doing_);
  }
  const BoundList& bound = runner->bound();
  if (bound.list.empty()) return;
  const int index = runner->current();
  heartbeat->step = args_.steps_before +
                    (runner->program().evaluates ? signals_.step.load() : runner->StepAt(index));
  const Instruction& current = bound.list[index];
  std::string text = ToText(current);
  const int message = bound.waits_for[index].index;
  if (current.op == Op::kWait && message >= 0 && bound.list[message].peer >= 0)
    text += fmt::format(" {} rank {}", current.sent ? "to" : "from",
                        topology_.RankOf({place_.replica, bound.list[message].peer, place_.index}));
  heartbeat->SetText(text);
}

TimeSpent Rank::time() const {
  TimeSpent time = runners_.time();
  time.total = steps_.end - steps_.begin - steps_.saving;
  time.waiting += steps_.held_back;
  const QueueTime queue = device_->compute().time();
  time.kernels = queue.busy;
  time.own -= queue.processor;
  time.starting = queue.starting;
  if (peers_) time.kernels -= peers_->waited(), time.waiting += peers_->waited();
  if (queue.starting > 0) time.waiting = time.total - time.kernels;
  return time;
}

Status Rank::CopyWeights(int stage, int64_t offset, int64_t bytes, void* out) {
  const StageCall copy = BindStage(*args_.program, place_.device, stage, 0, *device_);
  const std::byte* newest = copy.weights + NewestWeights(stage, 0, steps_.done);
  const Ticket ticket = device_->compute().CopyOut(out, newest + offset, bytes);
  device_->compute().WaitFor(ticket);
  return device_->status();
}

void Rank::AppendEvents(std::vector<Event>* events) const {
  for (const Recorders& recorders : recorders_) {
    recorders.compute.AppendTo(events);
    recorders.lanes.AppendTo(events);
  }
}

}  // namespace pp
