#include "runtime/comm/phase.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <utility>

namespace pp {

Status Exchange::Send(int to, const void* data, int64_t bytes) {
  const std::shared_ptr<char[]> buffer(new char[bytes]);
  if (bytes > 0) std::memcpy(buffer.get(), data, bytes);
  return Transfer(Way::kSend, to, buffer, bytes);
}

Status Exchange::Receive(int from, void* data, int64_t bytes) {
  const std::shared_ptr<char[]> buffer(new char[bytes]);
  PP_RETURN_IF_ERROR(Transfer(Way::kRecv, from, buffer, bytes));
  if (bytes > 0) std::memcpy(data, buffer.get(), bytes);
  return {};
}

Status Exchange::Transfer(Way way, int peer, std::shared_ptr<char[]> buffer, int64_t bytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  PP_CHECK(state_ == State::kNone || closed_);
  if (!closed_) {
    port_ = {way, Channel::kPhase, peer};
    buffer_ = std::move(buffer);
    bytes_ = bytes;
    state_ = State::kAsked;
    transport_.bell().Ring();
    changed_.wait(lock, [&] { return closed_ || state_ == State::kOver; });
  }
  released_ |= state_ != State::kOver;
  if (state_ != State::kOver)
    return Status::Failed(fmt::format("rank {}: rank {} does not answer", rank(), peer));
  state_ = State::kNone;
  return status_;
}

void Exchange::Advance() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kAsked) {
    status_ = transport_.Start(port_, buffer_.get(), bytes_);
    state_ = status_.ok() ? State::kUnderWay : State::kOver;
  }
  Look();
  if (state_ == State::kOver) changed_.notify_all();
}

void Exchange::Look() {
  if (state_ != State::kUnderWay) return;
  bool over = false;
  status_ = transport_.Test(port_, &over);
  if (over || !status_.ok()) state_ = State::kOver;
}

void Exchange::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  closed_ = true;
  Look();
  if (state_ == State::kUnderWay) transport_.Abandon(buffer_);
  changed_.notify_all();
}

bool Exchange::released() {
  std::lock_guard<std::mutex> lock(mutex_);
  return released_;
}

Status RunPhase(const PhaseArgs& args) {
  using std::chrono::milliseconds;
  std::optional<Exchange> exchange;
  if (args.transport != nullptr) exchange.emplace(*args.transport);
  Readiness mine;
  args.worker->Start([&] {
    const Status caught = Caught([&] {
      mine = args.work(exchange ? &*exchange : nullptr);
      return Status();
    });
    if (!caught.ok()) mine = {.status = caught};
    if (!exchange) return;
    mine.released = !mine.status.ok() && exchange->released();
    mine.complete = exchange->complete();
    args.transport->bell().Ring();
  });
  const auto is_over = [&](milliseconds wait) {
    if (args.on_poll) args.on_poll();
    return args.worker->IsOver(wait);
  };
  if (!exchange) {
    while (!is_over(milliseconds(100))) continue;
    return mine.status;
  }
  const auto ready = [&]() -> std::optional<Readiness> {
    exchange->Advance();
    return is_over(milliseconds(0)) ? std::optional(mine) : std::nullopt;
  };
  Status agreed;
  const Status caught = Caught([&] {
    agreed = Agree(*args.transport, args.patience, ready, [&] { exchange->Close(); });
    return Status();
  });
  exchange->Close();
  while (!is_over(milliseconds(100))) continue;
  PP_RETURN_IF_ERROR(caught);
  // Where there was no agreement.
  if (!mine.status.ok() && !mine.released && !args.transport->CheckUsable().ok())
    return mine.status;
  return agreed;
}

}  // namespace pp
