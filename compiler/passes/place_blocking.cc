// insert-comm --p2p blocking.
//
// A SEND and its RECV are a rendezvous, and no WAIT is needed. The program is simulated in time; a
// message is handed over at the first instant at which both devices are between compute
// instructions, gradients first, lower pair first. Both ends are placed at that instant, so that
// the lists follow one order of time and cannot deadlock.
//
//   device 1 holds s1         device 1 holds s1
//     FW        s1 m0    =>     RECV_act  s0 m0 from d0
//     BW        s1 m0           FW        s1 m0
//     FW        s1 m1           RECV_act  s0 m1 from d0   (made meanwhile; now both are free)
//     BW        s1 m1           BW        s1 m0
//                               SEND_grad s0 m0 to d0
//                               FW        s1 m1
//                               BW        s1 m1
//                               SEND_grad s0 m1 to d0
#include <algorithm>
#include <queue>

#include "compiler/passes/place_messages.h"

namespace pp {
namespace {

// Simulates the program in time and hands messages over when both devices are free.
class Meetings {
 public:
  Meetings(const Program& program, const std::vector<Message>& messages, const Durations& durations)
      : program_(program),
        messages_(messages),
        durations_(durations),
        insertions_(StartInsertions(program)),
        devices_(program.devices) {
    for (int d = 0; d < program.devices; ++d)
      devices_[d].missing.assign(program.lists[d].body.size(), 0);
    for (size_t m = messages.size(); m-- > 0;) {
      if (messages[m].consumer >= 0) ++devices_[messages[m].to].missing[messages[m].consumer];
      devices_[messages[m].from].next_message = m;
    }
  }

  std::vector<Insertions> Run() {
    std::vector<int> free;  // devices that may hand over or start at this instant
    for (int d = 0; d < program_.devices; ++d) free.push_back(d);
    while (true) {
      HandOver(free);
      for (int d : free) Start(d);
      free.clear();
      if (events_.empty()) return std::move(insertions_);
      now_ = events_.top().first;
      while (!events_.empty() && events_.top().first <= now_ * (1 + kSameTime)) {
        Finish(events_.top().second);
        free.push_back(events_.top().second);
        events_.pop();
      }
    }
  }

 private:
  static constexpr double kSameTime = 1e-9;  // sums of the same durations in another order
  struct Device {
    size_t next = 0;
    bool computing = false;
    size_t next_message = SIZE_MAX;  // the first that it has not produced
    std::vector<int> missing;        // by instruction: messages that have not arrived
    std::vector<int> pending;        // messages that it has produced or needs, and that are ready
  };
  using Event = std::pair<double, int>;

  // Everything that can be handed over by or to the devices `free`; the partners are appended to
  // it.
  void HandOver(std::vector<int>& free) {
    std::vector<int> now;
    for (int d : free)
      for (int m : devices_[d].pending)
        if (!devices_[messages_[m].from].computing && !devices_[messages_[m].to].computing)
          now.push_back(m);
    std::sort(now.begin(), now.end(), [&](int a, int b) { return Rank(a) < Rank(b); });
    now.erase(std::unique(now.begin(), now.end()), now.end());
    for (int m : now) {
      const Message& message = messages_[m];
      insertions_[message.from].Add(static_cast<int>(devices_[message.from].next), now_,
                                    Send(message));
      insertions_[message.to].Add(static_cast<int>(devices_[message.to].next), now_,
                                  Receive(message));
      if (message.consumer >= 0) --devices_[message.to].missing[message.consumer];
      for (int d : {message.from, message.to}) {
        std::erase(devices_[d].pending, m);
        free.push_back(d);
      }
    }
  }
  std::tuple<bool, int, int> Rank(int m) const {
    const Message& message = messages_[m];
    return {message.value.kind != Kind::kGrad, std::min(message.from, message.to), m};
  }

  void Start(int d) {
    Device& device = devices_[d];
    const auto& list = program_.lists[d].body;
    if (device.computing || device.next == list.size() || device.missing[device.next] > 0) return;
    if (WaitsForOthers(list[device.next]) && !device.pending.empty()) return;
    device.computing = true;
    events_.push({now_ + ComputeTime(list, device.next, durations_), d});
  }

  // The end of a reduction may depend on what the device still has to hand over.
  static bool WaitsForOthers(const Instruction& i) {
    return i.op == Op::kWait && i.value != Kind::kAct && i.value != Kind::kGrad;
  }

  void Finish(int d) {
    Device& device = devices_[d];
    device.computing = false;
    if (program_.lists[d].body[device.next].overlap) ++device.next;
    const int done = static_cast<int>(device.next++);
    // messages_ is in the order of devices and, on one, of producers.
    for (size_t& m = device.next_message;
         m < messages_.size() && messages_[m].from == d && messages_[m].producer == done; ++m) {
      device.pending.push_back(static_cast<int>(m));
      devices_[messages_[m].to].pending.push_back(static_cast<int>(m));
    }
  }

  const Program& program_;
  const std::vector<Message>& messages_;
  const Durations& durations_;
  std::vector<Insertions> insertions_;
  std::vector<Device> devices_;
  double now_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace

std::vector<Insertions> PlaceBlocking(const Program& program, const std::vector<Message>& messages,
                                      const Durations& durations) {
  return Meetings(program, messages, durations).Run();
}

}  // namespace pp
