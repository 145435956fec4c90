// One run of piperun on one rank: reads the plan, proves it, agrees with the other ranks, trains,
// and writes the outputs. The training itself is in runtime/run/train.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/comm/agree.h"
#include "runtime/comm/transport.h"
#include "runtime/device/cuda/gemm_table.h"
#include "runtime/main/backend.h"
#include "runtime/main/options.h"
#include "runtime/main/outputs.h"
#include "runtime/main/reserve.h"
#include "runtime/main/siblings.h"
#include "runtime/run/host_bytes.h"
#include "runtime/run/train.h"
#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/proof/verify.h"

namespace pp {

class Run {
 public:
  // `gemms` may be null. REQUIRES: the arguments outlive it.
  Run(const Arguments& arguments, Backend backend, std::shared_ptr<const GemmTable> gemms,
      SpareDescriptors* spares);

  // `transport` null: all ranks are threads of this process.
  Status Main(Transport* transport);

  // Whether this rank is the one that must report this error, and has not yet: rank 0, or the first
  // one that lives and answers.
  bool Speaks(const Status& status) const;

 private:
  bool First() const { return options_.transport == nullptr || options_.transport->rank() == 0; }
  Status Together(const std::function<Readiness()>& work);
  Status Prepare();
  Readiness ReadPlan();
  Status Read();
  Status CheckOptions() const;
  Status ProveForNccl();
  HostBytesArgs HostArgs() const;
  Status Begin(int64_t steps_before);
  void OnStep(const StepReport& step);
  void Print(const std::string& text);
  void Lose(const Status& status);
  Status End(const TrainReport& report);
  Status Finish(const TrainReport& report);
  Status CompareSteps(const TrainReport& report);

  const Arguments& arguments_;
  TrainOptions options_;
  Worker worker_;
  LauncherWatch launcher_;
  const Backend backend_;
  const std::shared_ptr<const GemmTable> gemms_;
  SpareDescriptors& spares_;
  int64_t added_bytes_ = 0;     // to the arena of the rank that needs the most (AddRegions)
  uint64_t plan_checksum_ = 0;  // of the file that program_ is from
  std::optional<Program> program_;
  Outputs outputs_;
  int64_t steps_ = 0;  // reported
  double seconds_ = 0;
  std::mutex losing_;
  Status lost_;  // the first report that could not be written
  std::atomic<bool> spoken_ = false;
};

}  // namespace pp
