#include "compiler/why.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "compiler/simulate.h"
#include "schema/play/execute.h"
#include "schema/sections.h"

namespace pp {
namespace {

using play::End;
using play::Transfer;

bool IsInPlace(const play::Traffic& traffic, int device, int32_t index) {
  const int32_t joined = traffic.joins[device][index];
  return joined >= 0 && traffic.ends[joined].index == index;
}

// Reads one play of `unrolled`.
class Reader {
 public:
  Reader(const Program& unrolled, const CostModel& costs, const Execution& execution)
      : unrolled_(unrolled),
        traffic_(execution.traffic),
        streams_(execution.streams),
        played_(execution.played),
        durations_(costs, unrolled),
        place_of_(traffic_.ends.size()) {
    for (size_t s = 0; s < streams_.all.size(); ++s)
      for (size_t item = 0; item < streams_.all[s].Items(); ++item)
        for (const int32_t e : streams_.all[s].Item(item)) place_of_[e] = {s, item};
    for (int d = 0; d < unrolled.devices; ++d) {
      const auto& list = unrolled.lists[d].body;
      std::vector<double>& times = lane_times_.emplace_back(list.size() + 1, 0);
      // As the play adds them, to the last bit.
      for (size_t i = 0; i < list.size(); ++i)
        times[i + 1] = IsOfLane(d, static_cast<int32_t>(i)) ? played_.over[d][i]
                                                            : times[i] + durations_.Lost(list[i]);
    }
  }

  // Of the instructions [from, to) of a device's list; `makespan` counts from the end of the one
  // before `from`.
  Idle IdleOf(int device, size_t from, size_t to, double makespan) const {
    Idle idle;
    ByCause open{};  // since the last instruction that took time
    const double begin = LaneTime(device, static_cast<int32_t>(from));
    double time = begin;
    bool begun = from > 0;
    for (size_t i = from; i < to; ++i) {
      const double over = LaneTime(device, static_cast<int32_t>(i) + 1);
      if (traffic_.joins[device][i] >= 0) {
        AddWait(device, static_cast<int32_t>(i), time, over, &open);
      } else if (over > time) {
        for (size_t c = 0; c < open.size(); ++c) (begun ? idle.gaps[c] : idle.warm_up) += open[c];
        open = {};
        begun = true;
      }
      time = over;
    }
    idle.drain = std::accumulate(open.begin(), open.end(), 0.0) + makespan - (time - begin);
    return idle;
  }

  // Back from the end of an instruction.
  std::vector<PathStep> PathTo(int device, int32_t index) const {
    std::vector<PathStep> path;
    const End* first = EndAt(device, index);
    Node node{device, index, first ? static_cast<int32_t>(first - traffic_.ends.data()) : -1};
    double end = played_.over[device][index];
    while (node.index >= 0) {
      if (node.end < 0) node = InLane(node.device, node.index);
      if (node.index < 0) break;
      const double start = StartOf(node);
      path.push_back(
          {node.device, node.index, At(node.device, node.index), start, std::exchange(end, start)});
      node = node.end < 0 ? Node{node.device, node.index - 1} : BeforeTransfer(node.end);
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  // An instruction: of a compute lane, or that starts a transfer.
  struct Node {
    int32_t device, index;
    int32_t end = -1;
  };

  const Instruction& At(int device, int32_t index) const {
    return unrolled_.lists[device].body[index];
  }
  bool IsOfLane(int device, int32_t index) const {
    return traffic_.joins[device][index] >= 0 || Info(At(device, index).op).lane == Lane::kCompute;
  }
  // When the compute lane has passed all before `index`, and what it lost to them.
  double LaneTime(int device, int32_t index) const { return lane_times_[device][index]; }
  double Over(const End& end) const { return played_.over[end.device][end.index]; }
  const End* EndAt(int device, int32_t index) const {
    const auto& mine = traffic_.started_by[device];
    const auto at = std::find_if(mine.begin(), mine.end(),
                                 [&](int32_t e) { return traffic_.ends[e].index == index; });
    return at == mine.end() ? nullptr : &traffic_.ends[*at];
  }

  // What the compute lane waits for at `index`, between two times. The cause that held the transfer
  // up comes first, then the transfer itself: what is left, the device would have waited anyway.
  void AddWait(int device, int32_t index, double from, double to, ByCause* sum) const {
    const int32_t joined = traffic_.joins[device][index];
    double left = to - from;
    const auto take = [&](Cause cause, double time) {
      const double taken = std::clamp(time, 0.0, left);
      (*sum)[static_cast<size_t>(cause)] += taken;
      left -= taken;
    };
    const End& end = traffic_.ends[joined];
    const Transfer& transfer = traffic_.transfers[end.transfer];
    const play::Start& start = played_.starts[end.transfer];
    const auto ends = traffic_.EndsOf(transfer);
    if (start.behind >= 0) {
      double ready = ReadyTime(ends);
      for (size_t e = 0; e < ends.size(); ++e)
        ready = std::max(ready, FreeTime(transfer.first_end + static_cast<int32_t>(e)));
      take(Cause::kLink, start.time - ready);
    }
    const bool is_send = joined == transfer.first_end;
    if (traffic_.flows[transfer.flow].IsCollective()) {
      const Op op = At(end.device, end.index).op;
      if (op == Op::kReduceNorm || op == Op::kReduceTied) return take(Cause::kCollective, left);
      // Behind one another, they wait for reductions, too.
      take(Cause::kReduction, to - ReadyTime(ends));
    } else if (is_send) {
      return take(end.index == index ? Cause::kRendezvous : Cause::kBuffer, left);
    } else {
      if (start.queued) take(Cause::kChannel, start.time - ReadyTime(ends));
      if (!start.queued && start.end == joined && end.index != index)
        take(Cause::kBuffer, start.time - ReadyTime(ends.first(1)));
      take(Cause::kMessage, to - ItemStart(joined));
    }
    take(Cause::kDependence, left);
  }
  // When the compute lanes had passed what these ends need.
  double ReadyTime(std::span<const End> ends) const {
    double time = 0;
    for (const End& end : ends) time = std::max(time, LaneTime(end.device, end.after + 1));
    return time;
  }
  // When the last operation of an end's item started.
  double ItemStart(int32_t end) const {
    double time = 0;
    const auto [stream, item] = place_of_[end];
    for (const int32_t e : streams_.all[stream].Item(item))
      time = std::max(time, played_.starts[traffic_.ends[e].transfer].time);
    return time;
  }
  // When the item before an end's was over in its stream.
  double FreeTime(int32_t end) const {
    double time = 0;
    const auto [stream, item] = place_of_[end];
    if (item > 0)
      for (const int32_t e : streams_.all[stream].Item(item - 1)) time = std::max(time, UntilOf(e));
    return time;
  }
  // When an end's transfer leaves its channel.
  double UntilOf(int32_t e) const {
    const End& end = traffic_.ends[e];
    return played_.starts[end.transfer].time + durations_(At(end.device, end.index));
  }

  // What the compute lane was last busy with, or waited for, at `index` or before it.
  Node InLane(int device, int32_t index) const {
    for (; index >= 0; --index) {
      if (durations_.Lost(At(device, index)) > 0) return {device, index};
      if (!IsOfLane(device, index) || played_.over[device][index] <= LaneTime(device, index))
        continue;
      const int32_t joined = traffic_.joins[device][index];
      return joined < 0 ? Node{device, index} : NodeOf(joined);
    }
    return {device, -1};
  }
  // The operation that its group was over with.
  Node NodeOf(int32_t end) const {
    const auto [stream, item] = place_of_[end];
    const auto all = streams_.all[stream].Item(item);
    const int32_t last = *std::max_element(
        all.begin(), all.end(), [&](int32_t a, int32_t b) { return UntilOf(a) < UntilOf(b); });
    const int32_t shown = traffic_.transfers[traffic_.ends[last].transfer].first_end;
    return {traffic_.ends[shown].device, traffic_.ends[shown].index, last};
  }
  double StartOf(const Node& node) const {
    return node.end < 0 ? LaneTime(node.device, node.index)
                        : played_.starts[traffic_.ends[node.end].transfer].time;
  }
  Node BeforeTransfer(int32_t end) const {
    const play::Start& start = played_.starts[traffic_.ends[end].transfer];
    if (start.behind >= 0) return NodeOf(traffic_.transfers[start.behind].first_end);
    const End& last = traffic_.ends[start.end];
    if (!start.queued) return {last.device, last.after};
    const auto [stream, item] = place_of_[start.end];
    return NodeOf(streams_.all[stream].Item(item - 1).front());
  }

  const Program& unrolled_;
  const play::Traffic& traffic_;
  const play::Streams& streams_;
  const play::Played& played_;
  const Durations durations_;
  std::vector<std::pair<size_t, size_t>> place_of_;  // end -> stream, item
  std::vector<std::vector<double>> lane_times_;      // device -> instruction
};

// What is played again: without one cause.
struct Replay {
  CostModel costs;
  play::Traffic traffic;
  play::Streams streams;
  std::optional<play::Links> links;
};

play::Streams OneForEach(const play::Traffic& traffic, const play::Streams& given) {
  play::Streams streams;
  for (const play::Stream& stream : given.all)
    if (traffic.FlowOf(traffic.ends[stream.ends.front()]).IsCollective()) {
      streams.all.push_back(stream);
    } else {
      for (const int32_t e : stream.ends)
        streams.all.push_back({stream.device, stream.carrier, {e}, {0, 1}});
    }
  return streams;
}

void Free(Cause cause, const Program& unrolled, Replay* replay) {
  play::Traffic& traffic = replay->traffic;
  const auto is_send = [&](int32_t e) {
    return traffic.transfers[traffic.ends[e].transfer].first_end == e;
  };
  const auto unless = [&](auto drops) {
    for (size_t d = 0; d < traffic.joins.size(); ++d)
      for (size_t i = 0; i < traffic.joins[d].size(); ++i)
        if (int32_t& joined = traffic.joins[d][i];
            joined >= 0 && drops(traffic.ends[joined], joined, static_cast<int32_t>(i)))
          joined = -1;
  };
  const auto post_early = [&](bool in_place) {
    for (const Transfer& transfer : traffic.transfers) {
      if (traffic.flows[transfer.flow].IsCollective()) continue;
      End& receiver = traffic.ends[transfer.first_end + 1];
      if (IsInPlace(traffic, receiver.device, receiver.index) == in_place) receiver.after = -1;
    }
  };
  switch (cause) {
    case Cause::kDependence:
      return;
    case Cause::kMessage:
      replay->costs = Scaled(std::move(replay->costs), CostPart::kMessages, 0);
      return;
    case Cause::kChannel:
      replay->streams = OneForEach(traffic, replay->streams);
      return;
    case Cause::kLink:
      replay->links.reset();
      return;
    case Cause::kRendezvous:
      post_early(true);
      return unless([&](const End& end, int32_t e, int32_t index) {
        return end.index == index && is_send(e);
      });
    case Cause::kBuffer:
      post_early(false);
      return unless([&](const End& end, int32_t e, int32_t index) {
        return end.index != index && !traffic.FlowOf(end).IsCollective() && is_send(e);
      });
    case Cause::kReduction:
      replay->costs = Scaled(std::move(replay->costs), CostPart::kReductions, 0);
      return;
    case Cause::kCollective:
      return unless([&](const End& end, int32_t, int32_t) {
        const Op op = unrolled.lists[end.device].body[end.index].op;
        return op == Op::kReduceNorm || op == Op::kReduceTied;
      });
  }
}

}  // namespace

Result<Why> Explain(const Program& program, const CostModel& costs, const Prediction& prediction) {
  const bool overlaps = program.overlaps;
  std::optional<Program> copy;
  if (overlaps) copy = Unrolled(program);
  const Program& unrolled = overlaps ? *copy : program;
  const Execution& execution = prediction.execution;
  const Reader reader(unrolled, costs, execution);
  Why why;
  const std::pair<int, size_t> last = LastInstruction(program, execution);
  for (int d = 0; d < program.devices; ++d) {
    const size_t body = program.lists[d].body.size();
    const size_t from = overlaps ? static_cast<size_t>(PrologueSize(program, d)) + body : 0;
    why.idle.push_back(reader.IdleOf(d, from, from + body, prediction.makespan));
  }
  why.critical_path = reader.PathTo(last.first, static_cast<int32_t>(last.second));
  for (size_t c = 1; c < kCauses.size(); ++c) {  // all but dependences
    Replay replay{costs, execution.traffic, execution.streams, execution.links};
    Free(static_cast<Cause>(c), unrolled, &replay);
    Execution without;
    PP_RETURN_IF_ERROR(Execute(unrolled, std::move(replay.traffic), std::move(replay.streams),
                               std::move(replay.links), replay.costs, &without));
    why.saved[c] = prediction.makespan - MakespanOf(program, without);
  }
  return why;
}

}  // namespace pp
