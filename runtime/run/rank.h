// One rank: its device, its two threads, and its part in starting and stopping all ranks.
//
//   compute thread         the compute lane, step after step
//   communication thread   the other lanes, and control messages between ranks
//
// Rank 0 coordinates. When it begins step k it announces whether there will be a step k+1, so that
// all ranks stop after the same step and none waits for the answer. A rank that fails tells rank 0,
// which tells all others.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/files/batches.h"
#include "runtime/files/file_watch.h"
#include "runtime/model/parameters.h"
#include "runtime/plan/recorder.h"
#include "runtime/plan/runner.h"
#include "runtime/run/control.h"
#include "runtime/run/evaluations.h"
#include "runtime/run/peer_exchanger.h"
#include "runtime/run/run_options.h"
#include "runtime/run/states.h"
#include "schema/nccl/communicators.h"
#include "schema/topology.h"

namespace pp {

// Notified when a thread of a rank starts and stops working on a step: the compute thread once per
// step, the communication thread many times. For tests that count what happens inside.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void Enter(int rank, int64_t step) = 0;
  virtual void Leave(int rank, int64_t step) = 0;
};

class Rank {
 public:
  struct Args {
    const Program* program = nullptr;
    Transport* transport = nullptr;
    const nccl::Sharings* nccl = nullptr;  // how messages share communicators; null: no NCCL
    const RunOptions* options = nullptr;
    const Batches* batches = nullptr;
    // Called on the compute thread. The bells are for a device whose work is done some time after
    // it is submitted.
    std::function<std::unique_ptr<Device>(const DeviceBells&)> make_device;
    // Peers null: none. It counts the operators that it has started.
    std::function<std::unique_ptr<StageExecutor>(Device*, Peers*, std::atomic<int64_t>* operators)>
        make_executor;
    std::function<Result<WeightSource>()> open_weights;
    // See TrainOptions.
    std::function<void(int rank, BoundList*, std::vector<CollectiveArgs>*)> after_bind;
    int64_t steps = 1;
    int64_t steps_before = 0;            // of the training that is resumed
    int64_t updates_before = 0;          // of every copy's weights
    const Checkpoint* resume = nullptr;  // to continue from
    kernels::LossScale loss_scale;       // of its first step, if the loss is scaled
    Validation validation;
    std::optional<double> least_loss;  // of a validation of the training that is resumed
    SampleOptions sample;              // after the last step
    StepObserver* observer = nullptr;  // null: none
    Bell* news = nullptr;              // the caller's; rings when there is something for it to do
    // Reports (on rank 0), heartbeats and kByes, on any thread; also from this rank itself.
    Control::Handler on_message;
  };
  // Rank 0 begins step k once the caller has handled the reports of step k - kReportsAhead.
  static constexpr int64_t kReportsAhead = 4;

  explicit Rank(Args args);
  ~Rank();

  // Starts the two threads; the compute thread checks and binds the list and makes device, executor
  // and weights. Failed: there is no thread left.
  Status BeginSetup();
  // Any thread: the setup is over. `news` rings when it becomes true.
  bool ready() const { return signals_.ready.load(); }
  // Once it is ready.
  Status setup_status() const { return setup_status_; }
  // Lets both threads continue: with the steps, or, if not all ranks are ready, to their ends.
  void Start();
  void Cancel();
  // Waits for both threads. REQUIRES: Start or Cancel.
  void Join();

  // Any thread. Stop after the next step that rank 0 can still announce.
  void AskToStop() { signals_.asked_to_stop.store(true); }
  // Any thread. Stop at once. False: it has failed before, and the first error stays.
  bool Fail(const Status& status);
  // Any thread; rank 0: of the validation whose checkpoint is kept, as the last one is not.
  void SetLeastLoss(std::optional<double> loss);
  // Any thread; rank 0: the caller has handled the reports up to `step`.
  void Consumed(int64_t step);
  // Any thread: tells the other ranks that this one is alive, and where it is.
  void PostHeartbeat();

  // Any thread: both threads have ended. After a failure the communication thread ends in limited
  // time, but a kernel cannot be stopped.
  bool ended() const { return signals_.ended.load() && signals_.computed.load(); }
  bool failed() const { return signals_.stop.load(); }
  int64_t executed() const;
  // The step and the instruction that it is in.
  void SayWhere(ControlMessage* heartbeat);

  // After Join, when the other ranks are not needed any more; the communication thread, when the
  // run has failed.
  void SettleMessages() {
    if (device_transport_) device_transport_->Settle(0);
  }

  // After Join, or once it has failed.
  Status status() const { return failure_; }
  bool left_cleanly() const { return left_cleanly_; }
  int64_t last_step() const { return steps_.done; }  // steps that it finished
  Status device_status() const { return device_ ? device_->status() : Status(); }
  TimeSpent time() const;
  int rank() const { return rank_; }
  // After Join: copies bytes of a stage's newest weights, of its first pipe, to the host.
  Status CopyWeights(int stage, int64_t offset, int64_t bytes, void* out);
  void AppendEvents(std::vector<Event>* events) const;
  // After Join: the sample, with its prompt; empty: none.
  std::vector<int32_t> sample() const { return evaluations_->sample(); }

 private:
  enum class Gate { kClosed, kOpen, kCancelled };

  const DeviceList& List() const { return args_.program->lists[place_.device]; }
  Status Setup();
  Status MakeDeviceTransport();
  void MakePeerExchanger();
  Status FillMemory();
  Runner::Args RunnerArgs();
  Status MakeRunners(BodyWalk walk);
  Runner* RunnerOf(int64_t number) const {
    return steps_of_.at(args_.batches->Microbatches(number));
  }
  template <typename F>
  void WaitUntil(const F& true_or_stopped);
  RankStates States(int64_t steps);
  int32_t NewestSlot(int stage, int pipe, int64_t steps) const;
  int64_t NewestWeights(int stage, int pipe, int64_t steps) const;
  bool IsLast(int64_t number);
  bool SavesAt(int64_t number);
  bool EvaluatesAt(int64_t number);
  Status Save(int64_t number);
  Status Evaluate(int64_t number);
  bool IsBest(int64_t number);
  void Judge(int from, const ControlMessage& message);
  Status OutOfMemory() const;
  Transport* messages() const {
    return device_transport_ ? device_transport_.get() : args_.transport;
  }
  bool PassGate(Bell& bell);
  void ComputeMain();
  void CommunicationMain();
  Status Communicate(bool* moved);
  Status Connect();
  void RunSteps();
  bool MayBegin(int64_t step);
  Status RunIteration(int64_t number, BodyPart part);
  void ReportUpTo(int64_t finished, int64_t at_least);
  int64_t PeakBytes() const;
  void Report(const StepResult& result);
  void OnMessage(int from, const ControlMessage& message);
  void Nap(uint64_t seen);

  // More members than most classes have: what its two threads work with, and by whom.

  // Both threads read these.
  const Args args_;
  const int rank_;
  const Topology topology_;
  const Place place_;

  // Any thread sets and reads these, also the device and the executor.
  struct Signals {
    std::atomic<Gate> gate{Gate::kClosed};
    std::atomic<bool> ready{false}, connected{false}, computed{false}, ended{false};
    std::atomic<bool> stop{false}, asked_to_stop{false};
    std::atomic<int64_t> go_step{1}, last_step, consumed{0};
    std::atomic<int64_t> step{1};       // that the compute thread is in
    std::atomic<int64_t> judged{0};     // the last step whose validation's loss all ranks know,
    std::atomic<bool> is_best{false};   // and whether it is the least so far
    std::atomic<int64_t> operators{0};  // of the executor
    // Than instructions: pieces that are saved, connections.
    std::atomic<int64_t> other_progress{0};
  };
  Signals signals_;
  Bell bell_;  // of the compute thread

  // The setup makes them, on the compute thread; then the threads have theirs by their own rules.
  std::unique_ptr<Device> device_;
  std::unique_ptr<Transport>
      device_transport_;  // to the device's memory; null: args_.transport has it
  std::unique_ptr<StageExecutor> executor_;
  std::unique_ptr<PeerExchanger> peers_;  // null: this rank has no tensor parallel peers
  Runners runners_;                       // the communication thread has their lanes
  std::map<int32_t, Runner*> steps_of_;   // by how many micro-batches they have
  std::unique_ptr<Evaluations> evaluations_;

  // Any thread.
  std::mutex failure_mutex_;
  Status failure_;
  std::mutex doing_mutex_;
  std::string doing_;  // before the first step; empty: instructions
  Control control_;
  // Rank 0's, with --keep-best: the ranks' sums of a validation's losses, and the least of them.
  std::mutex judging_mutex_;
  std::vector<std::optional<double>> losses_;
  std::optional<double> least_loss_;

  // The compute thread's; others may look after Join.
  struct Steps {
    int64_t done = 0;                  // and reported
    double last_end = 0;               // of a step, on the device's clock
    int64_t resumed = 0;               // the last step before which something else was done
    double begin = 0, end = 0;         // of all steps
    double saving = 0, held_back = 0;  // seconds: of checkpoints, until rank 0 let it go on
    int64_t saved = 0;                 // the last step that it has saved, or could not:
    Status unsaved;                    // why not
    int64_t evaluated = 0;             // the last step that a validation follows,
    double val_loss = 0;               // and the losses of it
  };
  Steps steps_;
  FileWatch files_;
  // Of the routines of steps. The communication thread's, too: each thread has its own of a pair.
  struct Recorders {
    Recorder compute, lanes;
  };
  std::deque<Recorders> recorders_;
  Status setup_status_;

  // The communication thread's; others may look after Join.
  bool left_cleanly_ = false;
  int quiet_tests_ = 0;  // one after the other

  std::thread compute_, communication_;
};

}  // namespace pp
