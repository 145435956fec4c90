#include "runtime/device/cuda/staged_transport.h"

#include <algorithm>

namespace pp {

StagedTransport::StagedTransport(const Args& args)
    : Transport(args.inner->rank(), args.inner->ranks(), args.inner->bell().words()), args_(args) {
  flows_.resize(port_count());
}

Status StagedTransport::Start(const Port& port, void* data, int64_t bytes) {
  if (port.channel == Channel::kControl) return args_.inner->Start(port, data, bytes);
  Flow& flow = flows_[IndexOf(port)];
  if (flow.pinned == nullptr) {
    Result<std::byte*> pinned = args_.driver->TakePinned(kBuffers * kPieceBytes);
    PP_RETURN_IF_ERROR(pinned.status());
    flow.pinned = *pinned;
  }
  flow.data = static_cast<std::byte*>(data);
  flow.bytes = bytes;
  flow.pieces = std::max<int64_t>(1, (bytes + kPieceBytes - 1) / kPieceBytes);
  flow.copied = flow.moved = 0;
  return {};
}

// Begins the next piece's transfer, or finishes the one that is under way.
Status StagedTransport::Move(const Port& port, Flow* flow) {
  if (!flow->moving) {
    flow->moving = true;
    PP_RETURN_IF_ERROR(
        args_.inner->Start(port, flow->Buffer(flow->moved), flow->BytesOf(flow->moved)));
  }
  bool over = false;
  PP_RETURN_IF_ERROR(args_.inner->Test(port, &over));
  if (over) {
    flow->moving = false;
    ++flow->moved;
  }
  return {};
}

Status StagedTransport::Send(const Port& port, Flow* flow) {
  while (true) {
    const int64_t before = flow->moved;
    for (; flow->copied < flow->pieces && flow->copied < flow->moved + kBuffers; ++flow->copied)
      flow->tickets[flow->copied % kBuffers] =
          args_.out->Copy(flow->Buffer(flow->copied), flow->data + flow->copied * kPieceBytes,
                          flow->BytesOf(flow->copied));
    if (flow->moved < flow->pieces && args_.out->Done(flow->tickets[flow->moved % kBuffers]))
      PP_RETURN_IF_ERROR(Move(port, flow));
    if (flow->moved == before || flow->moved == flow->pieces) return {};
  }
}

Status StagedTransport::Receive(const Port& port, Flow* flow) {
  while (flow->moved < flow->pieces) {
    // What was in the buffer has reached the device.
    if (!args_.in->Done(flow->tickets[flow->moved % kBuffers])) return {};
    const int64_t before = flow->moved;
    PP_RETURN_IF_ERROR(Move(port, flow));
    if (flow->moved == before) return {};
    flow->tickets[before % kBuffers] = args_.in->Copy(flow->data + before * kPieceBytes,
                                                      flow->Buffer(before), flow->BytesOf(before));
  }
  return {};
}

Status StagedTransport::Test(const Port& port, bool* over) {
  if (port.channel == Channel::kControl) return args_.inner->Test(port, over);
  Flow& flow = flows_[IndexOf(port)];
  PP_RETURN_IF_ERROR(port.way == Way::kSend ? Send(port, &flow) : Receive(port, &flow));
  const auto done = [&](Ticket ticket) { return args_.in->Done(ticket); };
  *over = flow.moved == flow.pieces &&
          (port.way == Way::kSend || std::all_of(flow.tickets, flow.tickets + kBuffers, done));
  return {};
}

}  // namespace pp
