#include "compiler/play/fill_weights.h"

#include <algorithm>
#include <deque>

#include "compiler/play/ideal.h"

namespace pp {
namespace {

class Filler {
 public:
  Filler(const Program& program, const std::vector<Message>& messages, const Durations& durations,
         const WeightFill& fill)
      : program_(program),
        durations_(durations),
        fill_(fill),
        channels_(program, messages, durations),
        places_(program.devices) {}

  Result<FilledLists> Play() {
    follower_.Run(program_.devices, *this);
    PP_RETURN_IF_ERROR(CheckEnded(program_, follower_));
    FilledLists filled;
    for (int d = 0; d < program_.devices; ++d) {
      double time = follower_.turn(d).time;
      while (!places_[d].weights.empty()) RunWeight(places_[d], time);
      filled.lists.push_back(std::move(places_[d].list));
      filled.makespan = std::max(filled.makespan, time);
    }
    return filled;
  }

  size_t Size(int device) const { return program_.lists[device].body.size(); }
  double Ready(int device, size_t index) const { return channels_.Ready(device, index); }
  bool Run(int device, Follower::Turn& turn, double ready) {
    Place& place = places_[device];
    const Instruction& i = program_.lists[device].body[turn.next];
    const int more = ActivationChange(i.op);
    while (!place.weights.empty()) {
      const double bubble = ready - turn.time;
      const bool fits =
          bubble > 0 && bubble >= fill_.least_bubble * durations_(place.weights.front());
      const bool full = more > 0 && place.alive + more > fill_.most_alive;
      if (!fits && !full) break;
      RunWeight(place, turn.time);
    }
    turn.time = std::max(turn.time, ready) + durations_(i);
    place.alive += more;
    place.list.push_back(i);
    if (i.op == Op::kBackwardInput)
      place.weights.push_back({.op = Op::kBackwardWeight, .stage = i.stage, .micro = i.micro});
    channels_.Send(device, turn.next, turn.time, follower_);
    return true;
  }

 private:
  struct Place {
    int alive = 0;
    std::deque<Instruction> weights;  // halves that are still to come
    std::vector<Instruction> list;
  };

  void RunWeight(Place& place, double& time) {
    place.list.push_back(place.weights.front());
    place.weights.pop_front();
    time += durations_(place.list.back());
    place.alive += ActivationChange(Op::kBackwardWeight);
  }

  const Program& program_;
  const Durations& durations_;
  const WeightFill fill_;
  Channels channels_;
  Follower follower_;
  std::vector<Place> places_;
};

}  // namespace

Result<FilledLists> FillWeights(const Program& program, const std::vector<Message>& messages,
                                const Durations& durations, const WeightFill& fill) {
  return Filler(program, messages, durations, fill).Play();
}

}  // namespace pp
