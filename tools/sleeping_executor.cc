#include "tools/sleeping_executor.h"

#include <sys/prctl.h>

#include <algorithm>
#include <ctime>

#include "schema/model/layout.h"

namespace pp {
namespace {

// Between two instructions that nothing separates the runtime takes less than this (seconds).
constexpr double kNoWait = 50e-6;

double Clock() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void SleepUntil(double deadline) {
  timespec at{};
  at.tv_sec = static_cast<time_t>(deadline);
  at.tv_nsec = static_cast<long>((deadline - static_cast<double>(at.tv_sec)) * 1e9);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) != 0) {
  }
}

class SleepingExecutor : public StageExecutor {
 public:
  SleepingExecutor(const Program& program, const CostModel& costs, double unit)
      : durations_(costs, program), unit_(unit), norm_blocks_(NormBlocks(*program.job)) {}

  void Run(const StageCall& call) override {
    // Timers of this thread are not delayed to be batched with others.
    if (end_ == 0) prctl(PR_SET_TIMERSLACK, 1);
    if (call.loss != nullptr && (call.op == Op::kForward || call.op == Op::kForwardDrop))
      *call.loss = 1;
    if (call.op == Op::kStep && call.norm != nullptr) call.norm[norm_blocks_] = 1;
    Instruction instruction;
    instruction.op = call.op;
    instruction.stage = call.stage;
    instruction.micro = call.micro;
    const double seconds = unit_ * durations_(instruction);
    if (seconds == 0) return;
    // The thread's oversleeping is not the runtime's time: this instruction begins earlier by as
    // much, unless the thread has been waiting in between.
    double begin = Clock();
    if (begin - end_ < kNoWait) begin -= late_;
    SleepUntil(begin + seconds);
    end_ = Clock();
    late_ = end_ - (begin + seconds);
  }

 private:
  const Durations durations_;
  const double unit_;
  const int64_t norm_blocks_;
  double end_ = 0, late_ = 0;
};

}  // namespace

std::unique_ptr<StageExecutor> MakeSleepingExecutor(const Program& program, const CostModel& costs,
                                                    double unit) {
  return std::make_unique<SleepingExecutor>(program, costs, unit);
}

std::vector<std::vector<double>> StepEnds(const Program& program, const TrainReport& report) {
  std::vector<std::vector<double>> ends(report.time.size());
  for (const Event& event : report.events) {
    if (program.lists[event.device].body[event.index].op != Op::kStep) continue;
    std::vector<double>& of_rank = ends[event.rank];
    of_rank.resize(std::max(of_rank.size(), static_cast<size_t>(event.step)));
    of_rank[event.step - 1] = std::max(of_rank[event.step - 1], event.start + event.duration);
  }
  return ends;
}

std::vector<double> StepTimes(const Program& program, const TrainReport& report, int skipped) {
  std::vector<double> times;
  for (const std::vector<double>& ends : StepEnds(program, report))
    for (size_t step = skipped; step < ends.size(); ++step)
      if (step > 0) times.push_back(ends[step] - ends[step - 1]);
  std::sort(times.begin(), times.end());
  return times;
}

}  // namespace pp
