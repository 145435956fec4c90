#include "runtime/device/cuda/nccl_transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/comm/clock.h"

namespace pp {
namespace {

// How often to look whether a communicator is made, which no bell announces.
constexpr double kPollSeconds = 1e-3;
// How often to check that communicators are still healthy.
constexpr double kCheckSeconds = 0.1;
// What a call may take that puts operations into a stream: microseconds, where all is well.
constexpr double kCallSeconds = 20;

}  // namespace

NcclTransport::NcclTransport(Args args)
    : Transport(args.inner->rank(), args.inner->ranks(), args.inner->bell().words()),
      args_(std::move(args)),
      guard_(kCallSeconds, [this] {
        args_.driver->Use();
        args_.nccl->Abort(made_);
      }) {
  ports_.resize(port_count());
  for (size_t line = 0; line < args_.communicators.size(); ++line)
    for (const Port& port : args_.communicators[line].ports)
      ports_[IndexOf(port)].line = static_cast<int>(line);
}

void NcclTransport::Settle(double) {
  if (std::exchange(settled_, true) || guard_.late()) return;
  args_.driver->Use();
  // If other members come only now, or never, its thread ends the one that is being made; if they
  // have come, its first bytes end here, and the thread with them.
  std::vector<Nccl::Communicator> all = made_;
  if (making_ != nullptr) {
    std::lock_guard<std::mutex> lock(making_->mutex);
    making_->abandoned = true;
    if (making_->communicator != nullptr) all.push_back(making_->communicator);
  }
  args_.nccl->Abort(all);
  while (all.size() > made_.size() && !making_->over.load()) sched_yield();
}

int NcclTransport::LaneOf(const Port& port) const {
  const int line = ports_[IndexOf(port)].line;
  PP_CHECK(line != kNoLine);
  return line;
}

Queue* NcclTransport::QueueOf(const Port& port) const {
  return port.channel == Channel::kControl ? nullptr : args_.queues[LaneOf(port)];
}

int NcclTransport::MemberOf(int line, int rank) const {
  const std::vector<int>& members = args_.communicators[line].members;
  return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
}

Status NcclTransport::In(int line, const Status& status) const {
  if (status.ok()) return {};
  return status.In(fmt::format("rank {}: communicator of ranks {}", rank(),
                               fmt::join(args_.communicators[line].members, ", ")));
}

Status NcclTransport::Connect(bool* over, std::string* doing) {
  *over = false;
  while (made_.size() < args_.communicators.size()) {
    *doing = fmt::format("makes communicator {} of {}, of ranks {}", line() + 1,
                         args_.communicators.size(),
                         fmt::join(args_.communicators[line()].members, ", "));
    bool next = false;
    switch (stage_) {
      case Stage::kId:
        PP_RETURN_IF_ERROR(In(line(), ShareId(&next)));
        if (!next) return {};
        stage_ = Stage::kCreate;
        break;
      case Stage::kCreate:
        PP_RETURN_IF_ERROR(In(line(), Create(&next)));
        if (!next) return {};
        stage_ = Stage::kId;
        break;
    }
  }
  for (size_t line = 0; line < made_.size(); ++line)
    if (!args_.queues[line]->Done(args_.queues[line]->last())) return Check();
  *over = true;
  return {};
}

// From the first member to the others, over the inner transport.
Status NcclTransport::ShareId(bool* over) {
  const std::vector<int>& members = args_.communicators[line()].members;
  if (!std::exchange(sharing_, true)) {
    if (rank() == members[0]) {
      const Result<Nccl::Id> id = args_.nccl->MakeId();
      PP_RETURN_IF_ERROR(id.status());
      id_ = *id;
      for (size_t k = 1; k < members.size(); ++k)
        id_ports_.push_back({Way::kSend, Channel::kAct, members[k]});
    } else {
      id_ports_.push_back({Way::kRecv, Channel::kAct, members[0]});
    }
    for (const Port& port : id_ports_)
      PP_RETURN_IF_ERROR(args_.inner->Start(port, id_.data(), id_.size()));
  }
  while (!id_ports_.empty()) {
    bool here = false;
    PP_RETURN_IF_ERROR(args_.inner->Test(id_ports_.back(), &here));
    if (!here) return {};
    id_ports_.pop_back();
  }
  sharing_ = false;
  *over = true;
  return {};
}

// The thread may outlive the run, if NCCL never returns from Create.
Status NcclTransport::Create(bool* over) {
  if (making_ == nullptr) {
    making_ = std::make_shared<Making>();
    const std::vector<int>& members = args_.communicators[line()].members;
    const auto main = [making = making_, nccl = args_.nccl, driver = args_.driver, id = id_,
                       member = MemberOf(line(), rank()), size = static_cast<int>(members.size()),
                       first = FirstBytes(), stream = args_.queues[line()]->stream()] {
      driver->Use();
      making->begun.store(true);
      const auto created = nccl->Create(id, member, size);
      making->status = created.status();
      bool abandoned = false;
      if (created.ok()) {
        std::lock_guard<std::mutex> lock(making->mutex);
        abandoned = making->abandoned;
        making->communicator = *created;
      }
      if (abandoned) nccl->Abort({&*created, 1});
      if (created.ok() && !abandoned && !first.empty())
        making->status = nccl->Enqueue(*created, first, stream);
      making->over.store(true);
    };
    try {
      std::thread(main).detach();
    } catch (const std::system_error& error) {
      return Status::Failed(fmt::format("no thread: {}", error.what()));
    }
    while (!making_->begun.load()) sched_yield();
  }
  if (!making_->over.load()) return {};
  const std::shared_ptr<Making> made = std::exchange(making_, nullptr);
  if (made->communicator != nullptr) made_.push_back(made->communicator);
  PP_RETURN_IF_ERROR(made->status);
  args_.queues[line() - 1]->Mark();
  *over = true;
  return {};
}

// One through each port of the communicator that is being made.
std::vector<Nccl::Operation> NcclTransport::FirstBytes() const {
  std::byte* byte = args_.bytes;
  std::vector<Nccl::Operation> first;
  for (int each = 0; each <= line(); ++each)
    for (const Port& port : args_.communicators[each].ports) {
      if (each == line()) first.push_back({port.way, MemberOf(each, port.peer), byte, 1});
      ++byte;
    }
  return first;
}

Status NcclTransport::Start(const Port& port, void* data, int64_t bytes) {
  const TransferArgs transfer{port, data, bytes};
  return StartTogether({&transfer, 1});
}

Status NcclTransport::StartTogether(std::span<const TransferArgs> transfers) {
  if (transfers.empty()) return {};
  if (transfers[0].port.channel == Channel::kControl) return args_.inner->StartTogether(transfers);
  const int line = LaneOf(transfers[0].port);
  operations_.clear();
  for (const TransferArgs& transfer : transfers) {
    PP_CHECK(LaneOf(transfer.port) == line);
    if (transfer.bytes > 0)  // both ends know the size
      operations_.push_back(
          {transfer.port.way, MemberOf(line, transfer.port.peer), transfer.data, transfer.bytes});
  }
  Ticket ticket = 0;
  if (!operations_.empty()) {
    args_.driver->Use();
    const Status status = guard_.Run([&] {
      return args_.nccl->Enqueue(made_[line], operations_, args_.queues[line]->stream());
    });
    if (guard_.late())
      return In(line,
                Status::Failed(fmt::format("NCCL: a call took more than {} s", kCallSeconds)));
    PP_RETURN_IF_ERROR(In(line, status));
    ticket = args_.queues[line]->Mark();
  }
  for (const TransferArgs& transfer : transfers) ports_[IndexOf(transfer.port)].ticket = ticket;
  return {};
}

Status NcclTransport::Test(const Port& port, bool* over) {
  if (port.channel == Channel::kControl) return args_.inner->Test(port, over);
  *over = args_.queues[LaneOf(port)]->Done(ports_[IndexOf(port)].ticket);
  return {};
}

Status NcclTransport::Check() {
  const double now = SteadySeconds();
  if (now < checked_at_ + kCheckSeconds) return {};
  checked_at_ = now;
  for (size_t line = 0; line < made_.size(); ++line)
    PP_RETURN_IF_ERROR(In(static_cast<int>(line), args_.nccl->Check(made_[line])));
  return {};
}

double NcclTransport::wake_at() const {
  return std::min(args_.inner->wake_at(),
                  SteadySeconds() + (making_ != nullptr ? kPollSeconds : kCheckSeconds));
}

}  // namespace pp
