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
#include <optional>
#include <tuple>

#include "compiler/passes/place_messages.h"
#include "compiler/play/player.h"

namespace pp {
namespace {

// Hands messages over when both devices are free, before they take the next of their lists.
class Meetings {
 public:
  static constexpr double kSame = 1e-9;  // sums of the same durations in another order

  Meetings(const Program& program, const std::vector<Message>& messages, const Durations& durations)
      : program_(program),
        messages_(messages),
        durations_(durations),
        insertions_(StartInsertions(program)),
        inbox_(program, messages),
        places_(program.devices),
        player_(program.devices, *this) {}

  std::vector<Insertions> Run() {
    for (int d = 0; d < program_.devices; ++d) player_.Wake(0, d);
    player_.Run();
    return std::move(insertions_);
  }

  void End(int device, double) {
    Place& place = places_[device];
    if (program_.lists[device].body[place.next].overlap) ++place.next;
    inbox_.ForEachOf(device, place.next++, [&](size_t m) {
      place.pending.push_back(m);
      places_[messages_[m].to].pending.push_back(m);
    });
  }

  // Everything that can be handed over by or to the devices `free`; the partners are appended to
  // it.
  void Exchange(double now, std::vector<int>& free) {
    std::vector<size_t> ready;
    for (int d : free)
      for (size_t m : places_[d].pending)
        if (!player_.Busy(messages_[m].from) && !player_.Busy(messages_[m].to)) ready.push_back(m);
    std::sort(ready.begin(), ready.end(), [&](size_t a, size_t b) { return Rank(a) < Rank(b); });
    ready.erase(std::unique(ready.begin(), ready.end()), ready.end());
    for (size_t m : ready) {
      const Message& message = messages_[m];
      Add(message.from, now, Send(message));
      Add(message.to, now, Receive(message));
      inbox_.Arrive(m, now);
      for (int d : {message.from, message.to}) {
        std::erase(places_[d].pending, m);
        free.push_back(d);
      }
    }
  }

  std::optional<double> Choose(int device, double) {
    const Place& place = places_[device];
    const auto& list = program_.lists[device].body;
    if (place.next == list.size() || inbox_.Ready(device, place.next) == kNever ||
        (WaitsForOthers(list[place.next]) && !place.pending.empty()))
      return std::nullopt;
    return ComputeTime(list, place.next, durations_);
  }

 private:
  struct Place {
    size_t next = 0;
    std::vector<size_t> pending;  // messages that it has made or needs, and that are ready
  };

  std::tuple<bool, int, size_t> Rank(size_t m) const {
    const Message& message = messages_[m];
    return {message.value.kind != Kind::kGrad, std::min(message.from, message.to), m};
  }
  // The end of a reduction may depend on what the device still has to hand over.
  static bool WaitsForOthers(const Instruction& i) {
    return i.op == Op::kWait && i.value != Kind::kAct && i.value != Kind::kGrad;
  }
  void Add(int device, double now, const Instruction& i) {
    insertions_[device].Add(static_cast<int>(places_[device].next), now, i);
  }

  const Program& program_;
  const std::vector<Message>& messages_;
  const Durations& durations_;
  std::vector<Insertions> insertions_;
  Inbox inbox_;
  std::vector<Place> places_;
  Player<Meetings> player_;
};

}  // namespace

PlacedOn PlaceBlocking(const Program& program, const std::vector<Message>& messages,
                       const Durations& durations) {
  return [all = Meetings(program, messages, durations).Run()](int device) { return all[device]; };
}

}  // namespace pp
