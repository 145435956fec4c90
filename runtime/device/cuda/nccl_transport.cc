#include "runtime/device/cuda/nccl_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/comm/clock.h"

namespace pp {
namespace {

// How often to poll for what no bell announces.
constexpr double kPollSeconds = 50e-6;
// How often to check that a communicator is still healthy.
constexpr double kWatchSeconds = 0.1;

}  // namespace

NcclTransport::NcclTransport(Args args)
    : Transport(args.inner->rank(), args.inner->ranks(), args.inner->bell().words()),
      args_(std::move(args)) {
  ports_.resize(port_count());
  for (size_t line = 0; line < args_.communicators.size(); ++line)
    for (const Port& port : args_.communicators[line].ports)
      ports_[IndexOf(port)].line = static_cast<int>(line);
}

void NcclTransport::Settle(double) {
  if (lines_.empty()) return;
  args_.driver->Use();
  std::vector<Nccl::Communicator> made;
  for (const Line& line : lines_)
    if (line.communicator != nullptr) made.push_back(line.communicator);
  args_.nccl->Abort(made);
  lines_.clear();
}

int NcclTransport::LaneOf(const Port& port) const {
  const int line = ports_[IndexOf(port)].line;
  PP_CHECK(line != kNoLine);
  return line;
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
  args_.driver->Use();
  *over = false;
  while (making_ || lines_.size() < args_.communicators.size()) {
    if (!std::exchange(making_, true)) {
      lines_.emplace_back();
      stage_ = Stage::kId;
    }
    const int line = static_cast<int>(lines_.size()) - 1;
    *doing =
        fmt::format("makes communicator {} of {}, of ranks {}", line + 1,
                    args_.communicators.size(), fmt::join(args_.communicators[line].members, ", "));
    bool next = false;
    switch (stage_) {
      case Stage::kId:
        PP_RETURN_IF_ERROR(In(line, ShareId(&next)));
        if (!next) return {};
        stage_ = Stage::kCreate;
        break;
      case Stage::kCreate:
        PP_RETURN_IF_ERROR(In(line, Create(&next)));
        if (!next) return {};
        SendFirstBytes();
        stage_ = Stage::kFirstBytes;
        break;
      case Stage::kFirstBytes:
        for (const Port& port : args_.communicators[line].ports) {
          bool here = false;
          PP_RETURN_IF_ERROR(Test(port, &here));
          if (!here) return {};
        }
        making_ = false;
        break;
    }
  }
  *over = true;
  return {};
}

// From the first member to the others, over the inner transport.
Status NcclTransport::ShareId(bool* over) {
  const std::vector<int>& members = args_.communicators.at(lines_.size() - 1).members;
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

Status NcclTransport::Create(bool* over) {
  const int line = static_cast<int>(lines_.size()) - 1;
  Line& made = lines_.back();
  if (made.communicator == nullptr) {
    const auto created = args_.nccl->Create(
        id_, MemberOf(line, rank()), static_cast<int>(args_.communicators[line].members.size()));
    PP_RETURN_IF_ERROR(created.status());
    made.communicator = *created;
  }
  return args_.nccl->Poll(made.communicator, over);
}

void NcclTransport::SendFirstBytes() {
  std::byte* byte = args_.bytes;
  std::vector<TransferArgs> transfers;
  for (size_t line = 0; line < args_.communicators.size(); ++line)
    for (const Port& port : args_.communicators[line].ports) {
      if (line + 1 == lines_.size()) transfers.push_back({port, byte, 1});
      ++byte;
    }
  if (transfers.empty()) return;
  for (const TransferArgs& transfer : transfers) ports_[IndexOf(transfer.port)].waits = true;
  lines_.back().groups.push_back(std::move(transfers));
}

Status NcclTransport::Start(const Port& port, void* data, int64_t bytes) {
  const TransferArgs transfer{port, data, bytes};
  return StartTogether({&transfer, 1});
}

Status NcclTransport::StartTogether(std::span<const TransferArgs> transfers) {
  if (transfers.empty()) return {};
  if (transfers[0].port.channel == Channel::kControl) return args_.inner->StartTogether(transfers);
  const int line = LaneOf(transfers[0].port);
  std::vector<TransferArgs> group;
  for (const TransferArgs& transfer : transfers) {
    PortState& port = ports_[IndexOf(transfer.port)];
    PP_CHECK(port.line == line);
    port.waits = transfer.bytes > 0;
    port.ticket = 0;
    if (transfer.bytes > 0) group.push_back(transfer);  // both ends know the size
  }
  if (group.empty()) return {};
  lines_[line].groups.push_back(std::move(group));
  return Advance(line);
}

// Puts what is queued into the stream.
Status NcclTransport::Advance(int number) {
  Line& line = lines_[number];
  while (!line.groups.empty()) {
    if (!line.enqueuing) {
      args_.driver->Use();
      std::vector<Nccl::Operation> operations;
      for (const TransferArgs& transfer : line.groups.front())
        operations.push_back({transfer.port.way, MemberOf(number, transfer.port.peer),
                              transfer.data, transfer.bytes});
      PP_RETURN_IF_ERROR(In(number, args_.nccl->Enqueue(line.communicator, operations,
                                                        args_.queues[number]->stream())));
      line.enqueuing = true;
    }
    bool done = false;
    PP_RETURN_IF_ERROR(In(number, args_.nccl->Poll(line.communicator, &done)));
    if (!done) return {};
    line.enqueuing = false;
    const Ticket ticket = args_.queues[number]->Mark();
    for (const TransferArgs& transfer : line.groups.front()) {
      PortState& port = ports_[IndexOf(transfer.port)];
      port.waits = false;
      port.ticket = ticket;
    }
    line.groups.pop_front();
  }
  return {};
}

Status NcclTransport::Test(const Port& port, bool* over) {
  if (port.channel == Channel::kControl) return args_.inner->Test(port, over);
  const int line = LaneOf(port);
  PP_RETURN_IF_ERROR(Advance(line));
  const PortState& state = ports_[IndexOf(port)];
  *over = !state.waits && args_.queues[line]->Done(state.ticket);
  return *over ? Status() : Watch(line);
}

// A rank that is gone leaves its partners waiting; NCCL reports it when asked.
Status NcclTransport::Watch(int number) {
  Line& line = lines_[number];
  const double now = SteadySeconds();
  if (line.enqueuing || now < line.watched_at + kWatchSeconds) return {};
  line.watched_at = now;
  bool done = false;
  return In(number, args_.nccl->Poll(line.communicator, &done));
}

double NcclTransport::wake_at() const {
  const auto enqueues = [](const Line& line) { return !line.groups.empty(); };
  const bool polls = making_ || std::any_of(lines_.begin(), lines_.end(), enqueues);
  return std::min(args_.inner->wake_at(), SteadySeconds() + (polls ? kPollSeconds : kWatchSeconds));
}

}  // namespace pp
