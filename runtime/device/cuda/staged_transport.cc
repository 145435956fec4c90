#include "runtime/device/cuda/staged_transport.h"

#include <algorithm>

namespace pp {

StagedTransport::StagedTransport(const Args& args)
    : Transport(args.inner->rank(), args.inner->ranks(), args.inner->bell().words()), args_(args) {
  transfers_.resize(port_count());
}

Status StagedTransport::Start(const Port& port, void* data, int64_t bytes) {
  if (port.channel == Channel::kControl) return args_.inner->Start(port, data, bytes);
  Transfer& transfer = transfers_[IndexOf(port)];
  if (transfer.pinned == nullptr) {
    Result<std::byte*> pinned = args_.driver->TakePinned(kBuffers * kPieceBytes);
    PP_RETURN_IF_ERROR(pinned.status());
    transfer.pinned = *pinned;
  }
  transfer.data = static_cast<std::byte*>(data);
  transfer.bytes = bytes;
  transfer.pieces = std::max<int64_t>(1, (bytes + kPieceBytes - 1) / kPieceBytes);
  transfer.copied = transfer.moved = 0;
  return {};
}

// Begins the next piece's transfer, or finishes the one that is under way.
Status StagedTransport::Move(const Port& port, Transfer* transfer) {
  if (!transfer->moving) {
    transfer->moving = true;
    PP_RETURN_IF_ERROR(args_.inner->Start(port, transfer->Buffer(transfer->moved),
                                          transfer->BytesOf(transfer->moved)));
  }
  bool over = false;
  PP_RETURN_IF_ERROR(args_.inner->Test(port, &over));
  if (over) {
    transfer->moving = false;
    ++transfer->moved;
  }
  return {};
}

Status StagedTransport::Send(const Port& port, Transfer* transfer) {
  while (true) {
    const int64_t before = transfer->moved;
    for (; transfer->copied < transfer->pieces && transfer->copied < transfer->moved + kBuffers;
         ++transfer->copied)
      transfer->tickets[transfer->copied % kBuffers] = args_.out->Copy(
          transfer->Buffer(transfer->copied), transfer->data + transfer->copied * kPieceBytes,
          transfer->BytesOf(transfer->copied));
    if (transfer->moved < transfer->pieces &&
        args_.out->Done(transfer->tickets[transfer->moved % kBuffers]))
      PP_RETURN_IF_ERROR(Move(port, transfer));
    if (transfer->moved == before || transfer->moved == transfer->pieces) return {};
  }
}

Status StagedTransport::Receive(const Port& port, Transfer* transfer) {
  while (transfer->moved < transfer->pieces) {
    // What was in the buffer has reached the device.
    if (!args_.in->Done(transfer->tickets[transfer->moved % kBuffers])) return {};
    const int64_t before = transfer->moved;
    PP_RETURN_IF_ERROR(Move(port, transfer));
    if (transfer->moved == before) return {};
    transfer->tickets[before % kBuffers] = args_.in->Copy(
        transfer->data + before * kPieceBytes, transfer->Buffer(before), transfer->BytesOf(before));
  }
  return {};
}

Status StagedTransport::Test(const Port& port, bool* over) {
  if (port.channel == Channel::kControl) return args_.inner->Test(port, over);
  Transfer& transfer = transfers_[IndexOf(port)];
  PP_RETURN_IF_ERROR(port.way == Way::kSend ? Send(port, &transfer) : Receive(port, &transfer));
  const auto done = [&](Ticket ticket) { return args_.in->Done(ticket); };
  *over =
      transfer.moved == transfer.pieces &&
      (port.way == Way::kSend || std::all_of(transfer.tickets, transfer.tickets + kBuffers, done));
  return {};
}

}  // namespace pp
