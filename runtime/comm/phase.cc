#include "runtime/comm/phase.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <future>
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
  PP_CHECK(state_ == State::kNone);
  port_ = {way, Channel::kPhase, peer};
  buffer_ = std::move(buffer);
  bytes_ = bytes;
  state_ = State::kAsked;
  transport_.bell().Ring();
  changed_.wait(lock, [&] { return closed_ || state_ == State::kOver; });
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
  bool over = false;
  if (state_ == State::kUnderWay) {
    status_ = transport_.Test(port_, &over);
    if (over || !status_.ok()) state_ = State::kOver;
  }
  if (state_ == State::kOver) changed_.notify_all();
}

void Exchange::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  if (state_ == State::kUnderWay) transport_.Abandon(buffer_);
  changed_.notify_all();
}

Status RunPhase(const PhaseArgs& args) {
  using std::chrono::milliseconds;
  std::unique_ptr<Exchange> exchange;
  if (args.transport != nullptr) exchange = std::make_unique<Exchange>(*args.transport);
  std::future<Readiness> work = std::async(std::launch::async, [&] {
    Readiness ready = args.work(exchange.get());
    if (exchange) args.transport->bell().Ring();
    return ready;
  });
  const auto poll = [&](milliseconds wait) {
    if (args.on_poll) args.on_poll();
    return work.wait_for(wait) == std::future_status::ready;
  };
  if (!exchange) {
    while (!poll(milliseconds(100))) continue;
    return work.get().status;
  }
  Status mine;
  const Status agreed = Agree(*args.transport, args.patience, [&]() -> std::optional<Readiness> {
    exchange->Advance();
    if (!poll(milliseconds(0))) return std::nullopt;
    Readiness ready = work.get();
    mine = ready.status;
    return ready;
  });
  exchange->Close();
  if (work.valid()) mine = work.get().status;
  // Where there was no agreement.
  if (!mine.ok() && !args.transport->CheckUsable().ok()) return mine;
  return agreed;
}

}  // namespace pp
