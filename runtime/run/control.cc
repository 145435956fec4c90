#include "runtime/run/control.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace pp {

void ControlMessage::SetText(const std::string& whole) {
  const size_t length = std::min(whole.size(), sizeof text - 1);
  std::memcpy(text, whole.data(), length);
}

void ControlMessage::SetProcess() {
  char host[65] = {};
  gethostname(host, sizeof host - 1);
  *fmt::format_to_n(process, sizeof process - 1, "process {} on {}", getpid(), host).out = 0;
}

Control::Control(Transport* transport, Handler handler)
    : transport_(transport), handler_(std::move(handler)) {
  if (transport->rank() == 0) {
    links_.resize(transport->ranks() - 1);
    for (int i = 0; i < transport->ranks() - 1; ++i) links_[i].peer = i + 1;
  } else {
    links_.resize(1);
    links_[0].peer = 0;
  }
}

void Control::Post(int to, const ControlMessage& message) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto link =
        std::find_if(links_.begin(), links_.end(), [&](const Link& l) { return l.peer == to; });
    PP_CHECK(link != links_.end());
    if (link->ended) return;
    link->ended = message.type == ControlMessage::Type::kBye;
    if (message.type == ControlMessage::Type::kHeartbeat && link->count > kRoom / 2) return;
    PP_CHECK(link->count < kRoom);
    link->out[(link->first + link->count++) % kRoom] = message;
  }
  transport_->bell().Ring();
}

void Control::PostAll(const ControlMessage& message) {
  for (const Link& link : links_) Post(link.peer, message);
}

// The others hear of a rank that has failed: its link does not stop theirs.
Status Control::Advance(bool* moved) {
  Status first;
  for (Link& link : links_) {
    Status status = Send(&link, moved);
    if (status.ok()) status = Receive(&link, moved);
    if (first.ok()) first = status;
  }
  return first;
}

Status Control::Send(Link* link, bool* moved) {
  const Port port{Way::kSend, Channel::kControl, link->peer};
  if (link->send_busy) {
    bool over = false;
    PP_RETURN_IF_ERROR(transport_->Test(port, &over));
    if (!over) return {};
    link->send_busy = false;
    if (link->sending.type == ControlMessage::Type::kBye) link->bye_sent = true;
    *moved = true;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (link->count == 0) return {};
    link->sending = link->out[link->first];
    link->first = (link->first + 1) % kRoom;
    --link->count;
  }
  link->send_busy = *moved = true;
  return transport_->Start(port, &link->sending, sizeof link->sending);
}

Status Control::Receive(Link* link, bool* moved) {
  const Port port{Way::kRecv, Channel::kControl, link->peer};
  if (link->bye_received) return {};
  if (link->recv_busy) {
    bool over = false;
    PP_RETURN_IF_ERROR(transport_->Test(port, &over));
    if (!over) return {};
    link->recv_busy = false;
    *moved = true;
    handler_(link->peer, link->receiving);
    if (link->receiving.type == ControlMessage::Type::kBye) {
      link->bye_received = true;
      return {};
    }
  }
  link->recv_busy = true;
  return transport_->Start(port, &link->receiving, sizeof link->receiving);
}

bool Control::others_left() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const Link& link) { return link.bye_received; });
}

bool Control::closed() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const Link& link) { return link.bye_sent && link.bye_received; });
}

}  // namespace pp
