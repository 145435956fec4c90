// The communication thread of a rank: it advances messages, reductions and control messages, and
// sleeps in between.
#include <sched.h>
#include <sys/prctl.h>

#include <chrono>
#include <new>
#include <string>
#include <utility>

#include "runtime/comm/clock.h"
#include "runtime/run/rank.h"

namespace pp {
namespace {

using std::chrono::microseconds;

// How long the communication thread sleeps between two tests where the transport polls:
// while the compute thread waits (after a few tests in a row), while it computes, and while
// only control messages can arrive. There may be more ranks than cores, and a thread that spins
// takes the core from one that computes.
constexpr int kTestsInARow = 5;
constexpr microseconds kWaitNap{60};
constexpr microseconds kBusyNap{150};
constexpr microseconds kIdleNap{2000};
// After a failure, how long to wait for the other ranks' kBye.
constexpr double kPartingSeconds = 3;

}  // namespace

void Rank::OnMessage(int from, const ControlMessage& message) {
  switch (message.type) {
    case ControlMessage::Type::kGo:
      signals_.last_step.store(message.last);
      signals_.go_step.store(message.step);
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
    case ControlMessage::Type::kValidation:
      if (rank_ == 0) return Judge(from, message);
      signals_.is_best.store(message.code != 0);
      signals_.judged.store(message.step);
      bell_.Ring();
      return;
    case ControlMessage::Type::kToken:
      return evaluations_->Hear(message.code);
    case ControlMessage::Type::kHeartbeat:
    case ControlMessage::Type::kBye:
      args_.on_message(from, message);
      break;
  }
  args_.news->Ring();
}

void Rank::PostHeartbeat() {
  ControlMessage message{.type = ControlMessage::Type::kHeartbeat, .executed = executed()};
  const std::string file = files_.current();
  message.in_file = !file.empty();
  message.SetProcess();
  if (message.in_file)
    message.SetText(file);
  else
    SayWhere(&message);
  control_.PostAll(message);
  if (rank_ == 0) args_.on_message(0, message);
}

void Rank::CommunicationMain() {
  prctl(PR_SET_TIMERSLACK, 1000);  // this thread's naps end within a microsecond
  if (!PassGate(args_.transport->bell())) return;
  double parting = 0;
  bool said_bye = false;
  while (true) {
    const uint64_t seen = args_.transport->bell().rings();
    bool moved = false;
    try {
      const Status status = Communicate(&moved);
      if (!status.ok()) Fail(status);
    } catch (const std::bad_alloc&) {
      Fail(OutOfMemory());
    }
    // Rank 0 posts it last: until then another rank may fail, which rank 0 passes on, and the last
    // checkpoint may not be whole.
    const bool last =
        rank_ != 0 || signals_.stop.load() ||
        (control_.others_left() && signals_.consumed.load() >= signals_.last_step.load());
    if (!said_bye && signals_.computed.load() && last) {
      control_.PostAll({.type = ControlMessage::Type::kBye});
      said_bye = true;
    }
    left_cleanly_ = said_bye && control_.closed();
    if (left_cleanly_) break;
    if (signals_.stop.load()) {
      if (parting == 0) parting = SteadySeconds() + kPartingSeconds;
      if (SteadySeconds() > parting) break;
    }
    quiet_tests_ = moved ? 0 : quiet_tests_ + 1;
    if (!moved) Nap(seen);
  }
  // What the device still waits for from other ranks never comes, and the compute thread waits for
  // the device.
  if (signals_.stop.load()) SettleMessages();
  signals_.ended.store(true);
  args_.news->Ring();
}

Status Rank::Communicate(bool* moved) {
  const int64_t step = signals_.step.load();
  if (args_.observer != nullptr) args_.observer->Enter(rank_, step);
  Status status = control_.Advance(moved);
  const auto goes_on = [&] { return status.ok() && !signals_.stop.load(); };
  if (goes_on() && !signals_.connected.load()) status = Connect();
  if (goes_on()) status = messages()->Check();
  if (signals_.connected.load()) {
    if (goes_on() && peers_) status = peers_->Advance(moved);
    if (goes_on()) status = runners_.Advance(moved);
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
    if (doing != doing_) ++signals_.other_progress;
    doing_ = std::move(doing);
  }
  if (!over) return {};
  signals_.connected.store(true);
  bell_.Ring();
  return {};
}

void Rank::Nap(uint64_t seen) {
  Transport& transport = *messages();
  const auto sleep = [&](std::chrono::nanoseconds longest) {
    transport.bell().WaitFor(seen, transport.MaySleep(longest));
  };
  const bool waiting = runners_.waiting() || (peers_ && peers_->waiting());
  const bool in_flight = runners_.in_flight() || (peers_ && peers_->under_way());
  if (signals_.stop.load()) {
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
