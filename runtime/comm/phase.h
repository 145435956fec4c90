// A phase that all ranks go through together, such as the export of the model. Each rank's work
// runs on its worker, and may exchange bytes with other ranks; meanwhile the calling thread gives
// heartbeats, so that a disk may take as long as it needs, and a rank that is gone is still
// noticed. When a rank's work has failed, nobody waits for its bytes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/comm/agree.h"
#include "runtime/comm/transport.h"
#include "runtime/comm/worker.h"
#include "schema/base/status.h"

namespace pp {

// Carries the transfers of a phase's work.
class Exchange {
 public:
  explicit Exchange(Transport& transport) : transport_(transport) {}

  // The work's thread: sends or receives, through Channel::kPhase. Failed: the phase has ended
  // because a rank does not answer or has failed, or a transfer failed.
  Status Send(int to, const void* data, int64_t bytes);
  Status Receive(int from, void* data, int64_t bytes);
  // Nobody waits for this rank any more, whatever error it has.
  void SetComplete() { complete_.store(true); }

  int rank() const { return transport_.rank(); }
  int ranks() const { return transport_.ranks(); }

  // The phase's thread: starts what is asked for, and tests what is under way.
  void Advance();
  // The phase's thread: no transfer will be over any more.
  void Close();
  // Any thread: a transfer has failed because of that.
  bool released();
  bool complete() const { return complete_.load(); }

 private:
  Status Transfer(Way way, int peer, std::shared_ptr<char[]> buffer, int64_t bytes);
  void Look();

  Transport& transport_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // INVARIANT: one transfer at a time, the work's.
  enum class State { kNone, kAsked, kUnderWay, kOver } state_ = State::kNone;
  bool closed_ = false, released_ = false;
  std::atomic<bool> complete_{false};
  Port port_{};
  std::shared_ptr<char[]> buffer_;
  int64_t bytes_ = 0;
  Status status_;
};

struct PhaseArgs {
  Transport* transport = nullptr;  // null: all ranks are in this process
  double patience = 0;             // see Agree
  Worker* worker = nullptr;
  // On the worker, with an exchange unless all ranks are in this process.
  std::function<Readiness(Exchange*)> work;
  std::function<void()> on_poll;  // on the calling thread, again and again; may be null
};

// Agree's answer, the same on all ranks. Every rank must call it. Returns when the work has: also
// if a rank does not answer, in which case the work's transfers fail.
Status RunPhase(const PhaseArgs& args);

}  // namespace pp
