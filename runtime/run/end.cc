#include "runtime/run/end.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/comm/clock.h"
#include "runtime/comm/phase.h"
#include "runtime/run/export.h"
#include "runtime/run/gather.h"
#include "runtime/run/stall_watch.h"

namespace pp {
namespace {

// How long the ranks of a failed run wait for each other, those of a good one at least, and those
// of one that waits forever.
constexpr double kFailedSeconds = 3, kLeastSeconds = 5, kForeverSeconds = 1e9;

class End {
 public:
  explicit End(const EndArgs& args)
      : args_(args),
        options_(*args.options),
        report_(*args.report),
        slow_files_(1, options_.stall_timeout) {}

  void Run() {
    if (args_.deadline != nullptr && !report_.status.ok()) args_.deadline->Set(options_.grace);
    if (args_.begun) {
      // In time after a failure: a rank may not have got here.
      const bool together = options_.transport == nullptr || First().left_cleanly();
      if (together) std::ignore = Phase([this](Exchange*) { return report_.status; });
      const bool complete = report_.last_step == report_.planned_steps;
      if (options_.exports && complete && report_.status.ok()) Export();
      Gather(together);
      Settle();
    }
    args_.ranks->clear();
    WriteRest();
  }

 private:
  bool IsFirst() const { return options_.transport == nullptr || options_.transport->rank() == 0; }
  Rank& First() const { return *args_.ranks->front(); }

  // How long the ranks wait for one that gives no heartbeat.
  double Patience() const {
    if (!report_.status.ok()) return kFailedSeconds;
    return options_.stall_timeout > 0 ? std::max(options_.stall_timeout, kLeastSeconds)
                                      : kForeverSeconds;
  }

  // All ranks get the same status; the report keeps the first error.
  Status Phase(const std::function<Status(Exchange*)>& work) {
    const Status status = Try(work);
    if (report_.status.ok()) report_.status = status;
    return status;
  }

  Status Try(const std::function<Status(Exchange*)>& work) {
    return RunPhase(
        {.transport = options_.transport,
         .patience = Patience(),
         .worker = args_.worker,
         .work = [&](Exchange* exchange) { return Readiness{.status = work(exchange)}; },
         .on_poll = [this] { Look(); }});
  }

  void Look() {
    const std::string file = files_.current();
    slow_files_.Heartbeat(0, {.text = file, .in_file = !file.empty()});
    slow_files_.Tick(clock_.Lap());
    if (const std::string slow = slow_files_.TakeSlowFile();
        IsFirst() && !slow.empty() && options_.on_note)
      options_.on_note(slow);
    // Whoever has asked twice does not wait for a disk, nor for a reader.
    if (args_.deadline != nullptr && options_.StopsNow() && !std::exchange(hurries_, true))
      args_.deadline->Set(options_.grace);
  }

  // What fails is tried once more: somebody may have removed the folder, and a disk may err.
  void Export() {
    Status status = TryToExport();
    const bool all_answer = options_.transport == nullptr || options_.transport->CheckUsable().ok();
    if (!status.ok() && all_answer) status = TryToExport();
    if (options_.export_to != nullptr) status = options_.export_to->WithRemains(status);
    report_.status = status;
  }

  Status TryToExport() {
    const int first = First().rank();
    const auto copy_out = [&](int rank, int stage, int64_t offset, int64_t bytes, void* out) {
      return (*args_.ranks)[rank - first]->CopyWeights(stage, offset, bytes, out);
    };
    PP_RETURN_IF_ERROR(Try([&](Exchange* exchange) {
      return ExportModel({.program = args_.program,
                          .what = ExportedOf(*args_.program->job, options_.export_merged),
                          .exchange = exchange,
                          .folder = options_.export_to,
                          .copy_out = copy_out});
    }));
    return Try([this](Exchange*) {
      return options_.export_to != nullptr ? options_.export_to->Finish(&files_) : Status();
    });
  }

  void Gather(bool together) {
    if (IsFirst() && report_.status.ok()) report_.sample = First().sample();
    const auto gather = [this](Exchange* exchange) {
      for (auto& rank : *args_.ranks) {
        report_.time.push_back(rank->time());
        rank->AppendEvents(&report_.events);
      }
      for (auto& records : *args_.records) {
        report_.records.insert(report_.records.end(), records.begin(), records.end());
        records = {};
      }
      if (exchange == nullptr) return Status();
      return GatherReports(*exchange, &report_.time, &report_.events, &report_.records);
    };
    const Status gathered = together ? Phase(gather) : Caught([&] { return gather(nullptr); });
    if (together && gathered.ok()) report_.inputs = args_.inputs;
    double first = report_.events.empty() ? 0 : report_.events[0].start;
    for (const Event& event : report_.events) first = std::min(first, event.start);
    for (Event& event : report_.events) event.start -= first;
  }

  // Before the arenas are freed.
  void Settle() {
    if (options_.transport != nullptr) options_.transport->Settle(Patience());
    for (auto& rank : *args_.ranks) rank->SettleMessages();
  }

  // Of a failed run, too.
  void WriteRest() {
    if (!options_.on_end) return;
    if (args_.deadline != nullptr && !hurries_) args_.deadline->Set(0);
    if (report_.orphaned) {
      report_.status = options_.on_end(report_);
    } else {
      report_.status = Try([this](Exchange*) { return options_.on_end(report_); });
    }
  }

  const EndArgs& args_;
  const TrainOptions& options_;
  TrainReport& report_;
  FileWatch files_;
  StallWatch slow_files_;
  AwakeClock clock_;
  bool hurries_ = false;
};

}  // namespace

void EndRun(const EndArgs& args) { End(args).Run(); }

}  // namespace pp
